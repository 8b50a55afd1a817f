# The rcfile of the bash kernel's bash process: receives cells from kernel.py one by one, and runs them in this shell.
#
# The shell is interactive, has no terminal, and runs a loop in its PROMPT_COMMAND. The reasons (bash(1)):
# - After an interrupt, an interactive shell continues with the next command. A non-interactive shell would exit.
# - An interactive shell prints job reports and prompts, but not while it runs PROMPT_COMMAND.
# - In PROMPT_COMMAND, a cell runs outside functions, so that `return` does not end the loop, and `declare` creates global variables.
#
# Descriptors:
# - 60: pipe from which the shell reads the number of the next cell.
# - 61: pipe to which the shell writes that it is ready, and how a cell has ended.
# - 62: standard error of cells.
# - 63: memory file with three texts, each followed by a NUL: the number of the cell, commands of the kernel to run before the cell, and the cell.
# - 2: /dev/null between cells, so that messages of bash itself are dropped.
#
# If an interrupt arrives after the shell has read the number of a cell and before the cell runs, the shell writes again that it is ready, and
# kernel.py sends the number again. No cell runs twice.

unset PS0 PS1 PS2 HISTFILE
set +m +H +o history
__sandlot_ran= __sandlot_busy= __sandlot_failed= __sandlot_status=0 __sandlot_flags= __sandlot_replaced=() __sandlot_texts=()

# Ends the cell: restores variables and reports the exit status to kernel.py.
# $1: "done" if the cell has ended by itself, "abandoned" if an interrupt has ended the cell.
__sandlot_over() {
    local status=$?
    [[ $__sandlot_busy ]] || return 0
    case $- in *x*) __sandlot_flags='set -x; ' ;; *) __sandlot_flags= ;; esac
    set +x
    jobs # makes bash forget jobs that have ended; the output is dropped
    __sandlot_status=${__sandlot_failed:-$status}
    local entry name
    for entry in ${__sandlot_replaced[@]+"${__sandlot_replaced[@]}"}; do
        name=${entry#?}
        name=${name%%=*}
        unset "$name"
        case $entry in
            x*) export "${entry#x}" ;;
            v*) declare -g "${entry#v}" ;;
        esac
    done
    __sandlot_replaced=()
    printf '%s %s %s\n' "$1" "$__sandlot_status" "$__sandlot_ran" >&61
    __sandlot_busy= __sandlot_failed= # must come last: if an interrupt arrives earlier, this function runs again, and a second report is harmless
}

__sandlot_next() {
    __sandlot_over abandoned >/dev/null
    local IFS=
    printf 'ready 0\n' >&61
    local number
    while read -r -u 60 number || exit 0; do
        [[ $number == "$__sandlot_ran" ]] && continue
        mapfile -u 63 -d '' -n 3 -t __sandlot_texts
        [[ $number == "${__sandlot_texts[0]-}" ]] && break
        printf 'ready 0\n' >&61 # ask for the number again: an interrupted read or mapfile has left a part of its input unread
    done
    __sandlot_busy=1
    __sandlot_ran=$number # must come last: if an interrupt arrives earlier, kernel.py sends the number of the cell again
}

# Sets $? to the status of the previous cell.
__sandlot_last() { return "$__sandlot_status"; }

# Exports the variable $1 with the value $2 for the next cell, and notes its present value, which __sandlot_over restores.
__sandlot_set() {
    if [[ ! -v $1 ]]; then
        __sandlot_replaced+=("u$1")
    elif [[ ${!1@a} == *x* ]]; then
        __sandlot_replaced+=("x$1=${!1}")
    else
        __sandlot_replaced+=("v$1=${!1}")
    fi
    export "$1=$2"
}

# Called with the exit status $1 when a command has failed. After `set -e`, bash would exit. This function interrupts the shell instead, which ends
# the cell and keeps the shell.
__sandlot_fail() {
    [[ $- == *e* && $BASHPID == "$$" ]] && __sandlot_failed=$1 && kill -INT $$
}
trap '__sandlot_fail $?' ERR
set -E

# PROMPT_COMMAND is one line, because bash counts the line numbers of a cell from the line of the `eval`. In the text for `eval`, the cell begins
# with the second line.
# If a cell ends the loop with a stray `break`, the last command of the line starts the loop again.
PROMPT_COMMAND='while __sandlot_next; do eval "${__sandlot_texts[1]-}"; __sandlot_last && :; '
PROMPT_COMMAND+='eval "$__sandlot_flags"$'"'\n'"'"${__sandlot_texts[2]-}" 2>&62; '
PROMPT_COMMAND+='__sandlot_over done >/dev/null; done; __sandlot_over done >/dev/null; eval "$PROMPT_COMMAND"'
