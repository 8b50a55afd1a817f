# The bash of a bash context, as its rcfile: takes cells from kernel.py one by one and runs them, in one shell that lives on.
#
# It is an interactive shell without a terminal, whose loop is its PROMPT_COMMAND, because of what bash(1) does with both:
# - An interactive shell that is interrupted drops what it runs and comes back for the next command; another one ends.
# - An interactive shell tells of jobs and prompts; in PROMPT_COMMAND it keeps quiet like one that runs a script.
# - No loop and no function is around a cell that it could `return` from or `declare` its variables in.
#
# 60 tells the number of a cell, 61 is told when the shell is ready and how which cell ended, 62 is standard error, 63 holds three texts with
# a NUL after each: the cell's number, what is ours to do before it, and the cell. Between cells standard error is /dev/null, where
# the noise goes. An interrupt may come between reading a number and running its cell: the shell is then ready once more, is told the
# number again, and runs no number twice.

unset PS0 PS1 PS2 HISTFILE
set +m +H +o history
__sandlot_ran= __sandlot_busy= __sandlot_failed= __sandlot_status=0 __sandlot_flags= __sandlot_lent=() __sandlot_texts=()

# The cell is over. $1: done, or abandoned where something took bash out of the middle of it.
__sandlot_over() {
    local status=$?
    [[ $__sandlot_busy ]] || return 0
    case $- in *x*) __sandlot_flags='set -x; ' ;; *) __sandlot_flags= ;; esac
    set +x
    jobs # forgets those that have ended
    __sandlot_status=${__sandlot_failed:-$status}
    local entry name
    for entry in ${__sandlot_lent[@]+"${__sandlot_lent[@]}"}; do
        name=${entry#?}
        name=${name%%=*}
        unset "$name"
        case $entry in
            x*) export "${entry#x}" ;;
            v*) declare -g "${entry#v}" ;;
        esac
    done
    __sandlot_lent=()
    printf '%s %s %s\n' "$1" "$__sandlot_status" "$__sandlot_ran" >&61
    __sandlot_busy= __sandlot_failed= # last: an interrupt before that has all of it done again, and told twice, which harms nobody
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
    __sandlot_ran=$number # last: an interrupt before that has the cell begun again
}

# $? of the cell before, for the cell that begins.
__sandlot_last() { return "$__sandlot_status"; }

# A variable for one cell: $1 is $2.
__sandlot_lend() {
    if [[ ! -v $1 ]]; then
        __sandlot_lent+=("u$1")
    elif [[ ${!1@a} == *x* ]]; then
        __sandlot_lent+=("x$1=${!1}")
    else
        __sandlot_lent+=("v$1=${!1}")
    fi
    export "$1=$2"
}

# With `set -e` a command has failed, and bash is about to exit: leave the cell as if interrupted instead, and keep the shell.
__sandlot_fail() {
    [[ $- == *e* && $BASHPID == "$$" ]] && __sandlot_failed=$1 && kill -INT $$
}
trap '__sandlot_fail $?' ERR
set -E

# In one line, because that is where bash counts a cell's lines from, and the cell begins with the second line of its text.
# The last command is for a cell with a stray `break`, which ends the loop.
PROMPT_COMMAND='while __sandlot_next; do eval "${__sandlot_texts[1]-}"; __sandlot_last && :; '
PROMPT_COMMAND+='eval "$__sandlot_flags"$'"'\n'"'"${__sandlot_texts[2]-}" 2>&62; '
PROMPT_COMMAND+='__sandlot_over done >/dev/null; done; __sandlot_over done >/dev/null; eval "$PROMPT_COMMAND"'
