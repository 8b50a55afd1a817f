# shellcheck shell=bash disable=SC2034 # what looks unused is used by those that source this
# What the scripts share. Sourced, never run.
#
# - Progress and errors go to stderr, so that a script's stdout is its result alone.
# - Long steps go through `step`: one line when they begin, one every 15 s while they last, one with the time that they took;
#   their own output is shown only if they fail.

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
readonly ROOT VENV

# The environment is .venv as it is locked: nothing of the caller's may slip in.
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV
# Without bytecode on the disk every process compiles all that it imports anew: 12 s for each process of scripts/test.
unset PYTHONDONTWRITEBYTECODE

say() {
    printf '%s\n' "$*" >&2
}

# die MESSAGE HINT...: what happened, then what to do about it.
die() {
    say "sandlot: $1"
    shift
    (($# == 0)) || printf '  %s\n' "$@" >&2
    exit 1
}

seconds_since() {
    local now=${EPOCHREALTIME/[.,]/} then=$1
    printf '%d.%d' $(((now - then) / 1000000)) $(((now - then) / 100000 % 10))
}

_heartbeat() {
    local title=$1 began=$2 status
    while true; do
        status=0
        read -r -t 15 || status=$?
        ((status > 128)) || return 0 # not a timeout: the step has ended
        say "    $title: $(seconds_since "$began") s so far"
    done
}

# step TITLE COMMAND [ARG...]: run a long step, its output kept away unless it fails. `set -e` has no effect inside of it:
# a function that is given here chains its commands with &&.
step() {
    local title=$1 began=${EPOCHREALTIME/[.,]/} log heartbeat status=0
    shift
    log=$(mktemp)
    say "==> $title"
    exec {heartbeat}> >(_heartbeat "$title" "$began")
    "$@" >"$log" 2>&1 </dev/null {heartbeat}>&- || status=$?
    exec {heartbeat}>&-
    if ((status != 0)); then
        tail -n 60 -- "$log" | sed 's/^/    | /' >&2
        say "    failed after $(seconds_since "$began") s: $title"
    else
        say "    done in $(seconds_since "$began") s"
    fi
    rm -f -- "$log"
    return "$status"
}

is_root() {
    ((EUID == 0))
}

# Sandboxes need root; say so before anything is downloaded.
need_root() {
    is_root || die "$1 must run as root: it starts sandboxes." "Run it as root, for example: sudo $1"
}
