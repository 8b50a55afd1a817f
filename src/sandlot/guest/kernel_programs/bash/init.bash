# The rcfile of the bash kernel's bash process: receives cells from kernel.py one by one, and runs them in this shell.
#
# The shell is interactive, has no terminal, and runs a loop in its PROMPT_COMMAND. The reasons (bash(1)):
# - After an interrupt, an interactive shell continues with the next command. A non-interactive shell would exit.
# - An interactive shell prints job reports and prompts, but not while it runs PROMPT_COMMAND.
# - In PROMPT_COMMAND, a cell runs outside functions, so that `return` does not end the loop, and `declare` creates global variables.
#
# Descriptors, with numbers above those that programs close when they close all:
# - 760: pipe from which the shell reads the number of the next cell: a line that begins with `#`, so that the rest of a line is no number.
# - 761: pipe to which the shell writes that it is ready, and how a cell has ended.
# - 762: standard error of cells.
# - 763: memory file with four texts, each followed by a NUL: the number of the cell, commands of the kernel to run before the cell, the cell, and
#   commands that set the traps of the cell before.
# - 764: /dev/null. A restricted shell (`set -r`) may not open files for writing, but may duplicate descriptors.
# - 765: memory file to which the shell writes the traps of the last cell.
# - 766: memory file for the state of a shell that is replaced by a new one; see __sandlot_exit.
# - 2: /dev/null between cells, so that messages of bash itself are dropped.
#
# If an interrupt arrives after the shell has read the number of a cell and before the cell runs, the shell writes again that it is ready, and
# kernel.py sends the number again. No cell runs twice.
#
# Settings of cells must not affect the loop:
# - Functions and aliases named like builtins: the loop calls `builtin NAME`, and its functions are parsed before any cell defines aliases.
# - Variables: all names of the loop begin with `__sandlot_`. mapfile is used instead of read, because it ignores IFS and TMOUT.
# - Options that change how commands run, and DEBUG and RETURN traps, are off between cells. PROMPT_COMMAND is the loop's again after each cell.
# - `set -e`: __sandlot_fail and __sandlot_exit keep the shell, or its variables in a new one.

unset PS0 PS1 PS2 HISTFILE
set +m +H +o history
shopt -s execfail # a failed `exec` does not end the shell, as in other interactive shells
__sandlot_ran= __sandlot_busy= __sandlot_failed= __sandlot_status=0 __sandlot_code=0 __sandlot_how= __sandlot_replaced=() __sandlot_texts=()
__sandlot_number=() __sandlot_entry= __sandlot_name= __sandlot_options= __sandlot_arguments=() __sandlot_caught= __sandlot_plain= __sandlot_text= __sandlot_works= __sandlot_posix= __sandlot_shopts=

# Makes the settings of the last cell harmless for the loop: saves options and traps and turns them off, and removes functions and alarms that end
# the loop.
__sandlot_prepare() {
    __sandlot_works=
    # This has no effect if a cell has defined a function named builtin or disabled the builtin, or after a syntax error in `[[`: bash then also
    # fails to parse the next `[[`, which is this one.
    builtin eval '[[ 1 ]]; __sandlot_works=1'
    if [[ ! $__sandlot_works || ${TMOUT-} ]]; then
        __sandlot_shopts=:$BASHOPTS: __sandlot_posix=
        if [[ -o posix ]]; then __sandlot_posix=1; fi
        POSIXLY_CORRECT=1 # turns on the POSIX mode, in which builtins such as `unset` take precedence over functions, and `read -t` stops alarms
        \unset -f builtin enable
        \enable builtin
        builtin read -r -t 60 __sandlot_entry </dev/null # after an interrupt, an alarm of TMOUT seconds is running, which would end the shell
        if [[ ! $__sandlot_posix ]]; then
            builtin unset POSIXLY_CORRECT
            [[ $__sandlot_shopts == *:inherit_errexit:* ]] || builtin shopt -u inherit_errexit
            [[ $__sandlot_shopts == *:expand_aliases:* ]] || builtin shopt -u expand_aliases
        fi
    fi
    builtin enable break continue declare enable eval exit export jobs kill mapfile printf read return set shopt trap unset
    [[ ${__sandlot_how-} == accepted ]] && builtin exit 1 # the cell did not run, because descriptor 762 is closed
    if [[ $- != "$__sandlot_plain" ]]; then
        [[ ${__sandlot_options-} ]] || __sandlot_options=+${-//[!aefkuvxCT]/}
        builtin set +aefkuvxCT
    fi
    [[ ${PROMPT_COMMAND-} == "$__sandlot_loop" || ${PROMPT_COMMAND@a} == *r* ]] || PROMPT_COMMAND=("$__sandlot_loop" "$__sandlot_loop")
}

# Ends the cell: restores variables and reports the exit status to kernel.py.
# $1: "done" if the cell has ended by itself, "abandoned" if an interrupt has ended the cell.
__sandlot_over() {
    [[ $1 == done || ${__sandlot_busy-unset} ]] || builtin return 0
    builtin jobs # makes bash forget jobs that have ended; the output is dropped
    __sandlot_status=${__sandlot_failed:-$__sandlot_code}
    for __sandlot_entry in ${__sandlot_replaced[@]+"${__sandlot_replaced[@]}"}; do
        __sandlot_name=${__sandlot_entry#?}
        __sandlot_name=${__sandlot_name%%=*}
        builtin unset "$__sandlot_name"
        case $__sandlot_entry in
            x*) builtin export "${__sandlot_entry#x}" ;;
            v*) builtin declare -g "${__sandlot_entry#v}" ;;
        esac
    done
    __sandlot_replaced=()
    # The number is empty if the cell has unset all variables.
    builtin printf '%s %s %s\n' "$1" "$__sandlot_status" "${__sandlot_ran-}" >&761
    __sandlot_busy= __sandlot_failed= # must come last: if an interrupt arrives earlier, this function runs again, and a second report is harmless
}

# Waits for the next cell and reads its texts. Ends the shell if the loop's descriptors or builtins are gone.
__sandlot_next() {
    builtin printf 'ready 0\n' >&761
    while builtin mapfile -u 760 -n 1 -t __sandlot_number && [[ ${__sandlot_number[0]+set} ]]; do
        # An interrupted mapfile has left the rest of a line unread. This function has since begun again, so kernel.py sends the number again.
        [[ ${__sandlot_number[0]} == '#'?* ]] || builtin continue
        __sandlot_number=${__sandlot_number[0]#?}
        [[ $__sandlot_number == "${__sandlot_ran-}" ]] && builtin continue
        builtin mapfile -u 763 -d '' -n 4 -t __sandlot_texts || builtin break
        if [[ $__sandlot_number == "${__sandlot_texts[0]-}" ]]; then
            __sandlot_busy=1 __sandlot_how=accepted
            __sandlot_ran=$__sandlot_number # must come last: if an interrupt arrives earlier, kernel.py sends the number of the cell again
            builtin return 0
        fi
        builtin printf 'ready 0\n' >&761 # ask for the number again: an interrupted mapfile has read a part of the texts
    done
    builtin exit 1
    [[ '' ]] # ends the loop if there is no builtin named builtin, and thereby the shell: its standard input is empty
}

# Sets $? to the status of the previous cell.
__sandlot_last() { builtin return "${__sandlot_status:-0}"; }

# Exports the variable $1 with the value $2 for the next cell, and notes its present value, which __sandlot_over restores.
__sandlot_set() {
    if [[ ! -v $1 ]]; then
        __sandlot_replaced+=("u$1")
    elif [[ ${!1@a} == *x* ]]; then
        __sandlot_replaced+=("x$1=${!1}")
    else
        __sandlot_replaced+=("v$1=${!1}")
    fi
    builtin export "$1=$2"
}

# Sets __sandlot_text to the commands that restore the options and traps of the last cell, without changing $? afterwards. Tracing is turned on
# last. They are one line, because bash counts the line numbers of a cell from the line of the `eval`.
__sandlot_restore() {
    __sandlot_text='__sandlot_how=; ' __sandlot_entry=
    if [[ ${__sandlot_options-} ]]; then
        __sandlot_entry=${__sandlot_options//[!vx]/}
        __sandlot_text="__sandlot_how= __sandlot_options=; \\builtin set -E${__sandlot_options//[+vx]/}; "
    fi
    __sandlot_text+='__sandlot_last && [[ 1 ]]; '
    if [[ ${__sandlot_texts[3]-} ]]; then __sandlot_text+="\\builtin eval ${__sandlot_texts[3]@Q}; "; fi
    if [[ $__sandlot_entry ]]; then __sandlot_text+="{ \\builtin set -$__sandlot_entry; } >&764 2>&764"; fi
}

# Called with the exit status $1 when a command has failed. After `set -e`, bash would exit. This function interrupts the shell instead, which ends
# the cell and keeps the shell.
__sandlot_fail() {
    if [[ $- == *e* && $BASHPID == "$$" ]]; then
        __sandlot_failed=$1
        [[ ${PROMPT_COMMAND@a} == *r* ]] || PROMPT_COMMAND=("$__sandlot_loop" "$__sandlot_loop")
        builtin trap - INT # a trap of a cell would run instead of the interrupt
        builtin kill -INT "$$"
    fi
}

# Runs when the shell exits. After `set -e`, bash exits without the ERR trap for errors such as unset variables (`set -u`, `${x?}`) and assignments to
# readonly variables, and also if a cell has replaced the ERR trap. This function then writes all variables, functions, aliases, options and traps
# to a file, and executes a new bash, which reads the file and reports the end of the cell. The process, its directory and its descriptors stay.
# Only the table of jobs is lost; the jobs themselves continue.
__sandlot_exit() {
    __sandlot_failed=$?
    [[ $- != *e* || $BASH_COMMAND == ?(builtin |command |\\)@(exit|logout)?( *) ]] && builtin return "$__sandlot_failed"
    __sandlot_options=+${-//[!aefkuvxCT]/}
    builtin set +aefkuvxCT
    {
        builtin declare -p
        builtin declare -f
        builtin declare -F
        builtin alias -p
        builtin shopt -p
        builtin set +o
        builtin trap -p
    } >/proc/self/fd/766 2>&764
    builtin exec "$BASH" --noprofile --rcfile "$__sandlot_rcfile" -i 2>&764
}

readonly -f __sandlot_prepare __sandlot_over __sandlot_next __sandlot_last __sandlot_set __sandlot_restore __sandlot_fail __sandlot_exit
trap '{ __sandlot_fail "$?"; } 2>&764' ERR # without stderr, so that `set -x` does not show the commands of the function
trap __sandlot_exit EXIT
set -E

# The loop is one line for the same reason. In the text for `eval`, the cell begins with the second line.
# An interrupt starts the loop again from its first command. __sandlot_how says how the cell has ended: it is "accepted" before the cell runs, empty
# while the cell runs and if it ends by itself, and else "abandoned" or, after a stray `break`, "done".
# If a cell ends the loop with a stray `break`, the last commands start the loop again.
__sandlot_loop='{ __sandlot_caught=$?; [[ ${__sandlot_how-} == done ]] || __sandlot_how=abandoned; } >&764; '
__sandlot_loop+='while { __sandlot_code=${__sandlot_caught:-$?} __sandlot_caught=; __sandlot_prepare; builtin trap -p RETURN DEBUG >&765; builtin trap - RETURN DEBUG; '
__sandlot_loop+='__sandlot_over "${__sandlot_how:-done}"; __sandlot_arguments=("$@"); __sandlot_next; } >&764; do '
__sandlot_loop+='\builtin eval "${__sandlot_texts[1]-}"; __sandlot_restore; \builtin eval "$__sandlot_text"$'"'\n'"'"${__sandlot_texts[2]-}" 2>&762; done; '
__sandlot_loop+='{ __sandlot_how=done; } >&764 && \builtin eval "$__sandlot_loop"'
__sandlot_rcfile=${BASH_SOURCE[0]}
__sandlot_plain=$-
readonly __sandlot_loop __sandlot_rcfile __sandlot_plain
if [[ -s /proc/self/fd/766 ]]; then # this bash was executed by __sandlot_exit
    source /proc/self/fd/766 >&764
    : >/proc/self/fd/766
    set -- "${__sandlot_arguments[@]}"
fi
# An interrupt during the last line of this file makes bash 5.2 turn job control on without setting the option `monitor` (main() in shell.c). Commands of
# cells would then have process groups of their own, which interrupts do not reach. So the first element sets job control as the option says. Later,
# __sandlot_prepare replaces the first element. If a cell assigns that element and is then interrupted, bash continues with the second element.
if [[ -o monitor ]]; then PROMPT_COMMAND=('builtin set -m' "$__sandlot_loop"); else PROMPT_COMMAND=('builtin set +m' "$__sandlot_loop"); fi
