"""``sudo`` of a sandbox: asks the guest to run a program as root, with this program's own standard streams.

Runs on the guest's interpreter, started by ``/usr/bin/sudo``. Understood: ``sudo [-n] [-E] [-H] [-S] [-k] [-u root] [--]
[NAME=VALUE ...] PROGRAM [ARGUMENT ...]`` and ``-i``/``-s`` for a shell. There is no password, because uids are no boundary
here: the sandbox is.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import struct
import sys

sys.path.insert(0, "/.sandlot/programs")
import values  # noqa: E402 - lies beside this file

SOCKET = "/run/sandlot/guest.sock"
HEAD = struct.Struct(">I")
KEPT = ("LANG", "LC_ALL", "TERM", "TZ", "COLUMNS", "LINES", "PATH", "DEBIAN_FRONTEND")
"""What root sees of the caller's environment without ``-E``."""

USAGE = "usage: sudo [-nEHSk] [-u root] [NAME=VALUE ...] PROGRAM [ARGUMENT ...] | sudo -i | sudo -s"


class UsageError(Exception):
    """The command line makes no sense."""


def parse(arguments: list[str]) -> tuple[list[str], dict[str, str], bool]:
    """The program to run, variables to set, and whether the caller's environment is kept."""
    variables: dict[str, str] = {}
    keep = shell = False
    at = 0
    while at < len(arguments):
        word = arguments[at]
        if word == "--":
            at += 1
            break
        if word in {"-u", "--user", "-g", "-p"}:
            if word in {"-u", "--user"} and arguments[at + 1 : at + 2] not in (["root"], ["0"]):
                raise UsageError("only root can be asked for")
            at += 2
            continue
        if word in {"-E", "--preserve-env"} or word.startswith("--preserve-env="):
            keep = True
        elif word in {"-i", "-s", "--login", "--shell"}:
            shell = True
        elif word in {"-V", "--version"}:
            raise UsageError("sudo of a Sandlot sandbox")
        elif word.startswith("-") and set(word[1:]) <= set("nEHSkbA"):
            keep = keep or "E" in word
        elif "=" in word and not word.startswith(("-", "=")) and "/" not in word.split("=", 1)[0]:
            name, _, value = word.partition("=")
            variables[name] = value
        elif word.startswith("-"):
            raise UsageError("unknown option " + word)
        else:
            break
        at += 1
    argv = arguments[at:]
    if shell:
        shell_path = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        argv = [shell_path, "-c", " ".join(argv)] if argv else [shell_path]
    if not argv:
        raise UsageError(USAGE)
    return argv, variables, keep


def ask(argv: list[str], env: dict[str, str]) -> int:
    """Run it; its exit status."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(SOCKET)
    except OSError as error:
        sys.stderr.write("sudo: the sandbox's guest cannot be reached: %s\n" % error)
        return 1
    raw = values.encode({"op": "sudo", "argv": argv, "env": env, "cwd": os.getcwd()})
    message = memoryview(HEAD.pack(len(raw)) + raw)
    descriptors = array.array("i", [0, 1, 2])
    sent = link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    link.sendall(message[sent:])
    answer = b""
    while True:
        part = link.recv(65536)
        if not part:
            break
        answer += part
    reply = values.decode(answer[HEAD.size :]) if len(answer) > HEAD.size else {"error": "the guest did not answer"}
    if "error" in reply:
        sys.stderr.write("sudo: %s\n" % reply["error"])
        return 1
    return int(reply["status"])


def main() -> int:
    """The command line."""
    try:
        argv, variables, keep = parse(sys.argv[1:])
    except UsageError as error:
        sys.stderr.write("%s\n" % error)
        return 1
    env = {name: value for name, value in os.environ.items() if keep or name in KEPT}
    env.update(variables)
    env["SUDO_USER"] = os.environ.get("USER", "user")
    env["SUDO_UID"] = str(os.getuid())
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    return ask(argv, env)


if __name__ == "__main__":
    sys.exit(main())
