# The rcfile of the bash kernel: takes cells from kernel.py one by one and runs them in one shell.
#
# It is an interactive shell without a terminal, whose loop is its PROMPT_COMMAND, because of what bash(1) does with both:
# - An interactive shell that is interrupted stops what it runs and continues with the next command; any other shell ends.
# - An interactive shell reports jobs and prompts; in PROMPT_COMMAND it is quiet, like one that runs a script.
# - No loop and no function is around a cell that it could `return` from or `declare` its variables in.
#
# Descriptor 60 delivers the number of a cell. On 61, the shell reports that it is ready and how a cell has ended. 62 is standard error. 63
# contains three texts, each followed by a NUL: the number of the cell, commands of the kernel to run before it, and the cell. Between cells,
# standard error is /dev/null, which takes the noise. An interrupt may come between reading a number and running its cell: the shell then
# reports again that it is ready, receives the number again, and runs no number twice.

unset PS0 PS1 PS2 HISTFILE
set +m +H +o history
__sandlot_ran= __sandlot_busy= __sandlot_failed= __sandlot_status=0 __sandlot_flags= __sandlot_replaced=() __sandlot_texts=()

# Ends the cell. $1: done, or abandoned if bash has left it in the middle.
__sandlot_over() {
    local status=$?
    [[ $__sandlot_busy ]] || return 0
    case $- in *x*) __sandlot_flags='set -x; ' ;; *) __sandlot_flags= ;; esac
    set +x
    jobs # forgets those that have ended
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
    __sandlot_busy= __sandlot_failed= # last: an interrupt before this repeats the function, and a second report does no harm
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
        printf 'ready 0\n' >&61 # an interrupted read leaves half a line, an interrupted mapfile its buffer
    done
    __sandlot_busy=1
    __sandlot_ran=$number # last: an interrupt before this starts the cell again
}

# Sets $? of the previous cell for the next one.
__sandlot_last() { return "$__sandlot_status"; }

# Sets a variable for one cell: $1 is $2.
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

# With `set -e`, a command has failed and bash is about to exit: leave the cell as after an interrupt instead, and keep the shell.
__sandlot_fail() {
    [[ $- == *e* && $BASHPID == "$$" ]] && __sandlot_failed=$1 && kill -INT $$
}
trap '__sandlot_fail $?' ERR
set -E

# One line, because bash counts the lines of a cell from here, and the cell begins with the second line of its text.
# The last command is for a cell with a stray `break`, which ends the loop.
PROMPT_COMMAND='while __sandlot_next; do eval "${__sandlot_texts[1]-}"; __sandlot_last && :; '
PROMPT_COMMAND+='eval "$__sandlot_flags"$'"'\n'"'"${__sandlot_texts[2]-}" 2>&62; '
PROMPT_COMMAND+='__sandlot_over done >/dev/null; done; __sandlot_over done >/dev/null; eval "$PROMPT_COMMAND"'
