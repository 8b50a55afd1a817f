# The rcfile of the bash kernel: receives cells from kernel.py one by one, and runs them in one shell.
#
# The shell is interactive, has no terminal, and runs a loop in its PROMPT_COMMAND. The reasons (bash(1)):
# - After an interrupt, an interactive shell continues with the next command. A non-interactive shell exits.
# - An interactive shell prints job reports and prompts, but not inside PROMPT_COMMAND.
# - A cell runs outside functions, so `return` does not end the loop, and `declare` creates global variables.
#
# Descriptors: on 60, the shell receives the number of a cell. On 61, it reports that it is ready and how a cell has ended. 62 is standard error.
# 63 contains three texts, each followed by a NUL: the number of the cell, commands of the kernel to run before the cell, and the cell. Between
# cells, standard error is /dev/null, which drops messages of bash itself. If an interrupt arrives after the number of a cell was read and before
# the cell runs, the shell reports again that it is ready and receives the number again. No cell runs twice.

unset PS0 PS1 PS2 HISTFILE
set +m +H +o history
__sandlot_ran= __sandlot_busy= __sandlot_failed= __sandlot_status=0 __sandlot_flags= __sandlot_replaced=() __sandlot_texts=()

# Ends the cell. $1: done, or abandoned if an interrupt has ended it.
__sandlot_over() {
    local status=$?
    [[ $__sandlot_busy ]] || return 0
    case $- in *x*) __sandlot_flags='set -x; ' ;; *) __sandlot_flags= ;; esac
    set +x
    jobs # removes ended jobs from the list
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
    __sandlot_busy= __sandlot_failed= # last, because an interrupt before this line repeats the function; a second report is harmless
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
        printf 'ready 0\n' >&61 # after an interrupted read, a part of the line is left; after an interrupted mapfile, its buffer
    done
    __sandlot_busy=1
    __sandlot_ran=$number # last, because an interrupt before this line starts the cell again
}

# Sets $? to the status of the previous cell.
__sandlot_last() { return "$__sandlot_status"; }

# Sets the variable $1 to $2 for one cell.
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

# Called when a command has failed. With `set -e`, bash would exit; end the cell as after an interrupt instead, and keep the shell.
__sandlot_fail() {
    [[ $- == *e* && $BASHPID == "$$" ]] && __sandlot_failed=$1 && kill -INT $$
}
trap '__sandlot_fail $?' ERR
set -E

# One line, because bash counts the lines of a cell from here, and the cell begins with the second line of its text.
# The last command restarts the loop, which a cell with a stray `break` ends.
PROMPT_COMMAND='while __sandlot_next; do eval "${__sandlot_texts[1]-}"; __sandlot_last && :; '
PROMPT_COMMAND+='eval "$__sandlot_flags"$'"'\n'"'"${__sandlot_texts[2]-}" 2>&62; '
PROMPT_COMMAND+='__sandlot_over done >/dev/null; done; __sandlot_over done >/dev/null; eval "$PROMPT_COMMAND"'
