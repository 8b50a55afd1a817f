"""``sudo`` of a sandbox: asks the guest to run a program as root, with this program's own standard streams.

Runs on the guest's interpreter, started by ``/usr/bin/sudo``. Understood: ``sudo [-n] [-E] [-H] [-S] [-k] [-u root] [--]
[NAME=VALUE ...] PROGRAM [ARGUMENT ...]`` and ``-i``/``-s`` for a shell. There is no password, because uids are no boundary
here: the sandbox is.

Where ``/usr/local`` is the caller's, as in our images, what a program as root installed there is given to the caller afterwards:
``sudo pip install`` must not be what the next ``pip install --upgrade`` fails at. (Not by S_ISGID: gVisor's overlay loses that bit.)
"""

from __future__ import annotations

import array
import os
import signal
import socket
import sys

sys.path.insert(0, "/.sandlot/programs")
import values  # type: ignore[import-not-found]  # lies beside this file

SOCKET = "/run/sandlot/guest.sock"
KEPT = ("LANG", "LC_ALL", "TERM", "TZ", "COLUMNS", "LINES", "PATH", "DEBIAN_FRONTEND")
"""What root sees of the caller's environment without ``-E``."""

OWNED = "/usr/local"

USAGE = "usage: sudo [-nEHSk] [-u root] [NAME=VALUE ...] PROGRAM [ARGUMENT ...] | sudo -i | sudo -s"


class UsageError(Exception):
    """The command line makes no sense."""


class Wish:
    """What a command line asks for."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.variables: dict[str, str] = {}
        self.keep = False
        self.shell = False

    def option(self, word: str, following: list[str]) -> int:
        """Take one option or assignment; how many words it is, 0 where the program begins."""
        if word in {"-u", "--user"} and following[:1] not in (["root"], ["0"]):
            raise UsageError("only root can be asked for")
        if word in {"-u", "--user", "-g", "-p"}:
            return 2
        if word in {"-V", "--version"}:
            raise UsageError("sudo of a Sandlot sandbox")
        if word in {"-i", "-s", "--login", "--shell"}:
            self.shell = True
        elif word.startswith("--preserve-env") or (word.startswith("-") and set(word[1:]) <= set("nEHSkbA")):
            self.keep = self.keep or "E" in word or word.startswith("--preserve-env")
        elif word.startswith("-"):
            raise UsageError(f"unknown option {word}")
        else:
            name, equals, value = word.partition("=")
            if not equals or not name or "/" in name:
                return 0
            self.variables[name] = value
        return 1


def parse(arguments: list[str]) -> Wish:
    """What the command line asks for.

    Raises:
        UsageError: It makes no sense.
    """
    wish = Wish()
    at = 0
    while at < len(arguments):
        if arguments[at] == "--":
            at += 1
            break
        words = wish.option(arguments[at], arguments[at + 1 :])
        if not words:
            break
        at += words
    wish.argv = arguments[at:]
    if wish.shell:
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        wish.argv = [shell, "-c", " ".join(wish.argv)] if wish.argv else [shell]
    if not wish.argv:
        raise UsageError(USAGE)
    return wish


def ask(argv: list[str], env: dict[str, str]) -> int:
    """Run it; its exit status."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(SOCKET)
    except OSError as error:
        sys.stderr.write(f"sudo: the sandbox's guest cannot be reached: {error}\n")
        return 1
    message = memoryview(values.encode_message({"op": "sudo", "argv": argv, "env": env, "cwd": os.getcwd()}))
    descriptors = array.array("i", [0, 1, 2])
    sent = link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    if sent < len(message):  # sendall of nothing is a send(2) as well, and what is quick has been answered and closed by then
        link.sendall(message[sent:])
    answer = values.MessageReader()
    while part := link.recv(65536):
        answer.feed(part)
    reply = next(answer.messages(), {"error": "the guest did not answer"})
    if "error" in reply:
        sys.stderr.write(f"sudo: {reply['error']}\n")
        return 1
    return int(reply["status"])


def sites() -> dict[str, int]:
    """When each of the folders that installers fill was last changed, in nanoseconds; nothing where they are not the caller's."""
    found: dict[str, int] = {}
    try:
        if os.stat(OWNED).st_uid != os.getuid():
            return found
        pythons = [name for name in os.listdir(f"{OWNED}/lib") if name.startswith("python3")]
        folders = ["bin", "lib/node_modules", *(f"lib/{name}/dist-packages" for name in pythons)]
    except OSError:
        return found
    for folder in folders:
        try:
            found[folder] = os.stat(f"{OWNED}/{folder}").st_mtime_ns
        except OSError:
            found[folder] = 0
    return found


def main() -> int:
    """The command line."""
    try:
        wish = parse(sys.argv[1:])
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    env = {name: value for name, value in os.environ.items() if wish.keep or name in KEPT}
    env.update(wish.variables)
    env["SUDO_USER"] = os.environ.get("USER", "user")
    env["SUDO_UID"] = str(os.getuid())
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    before = sites()
    status = ask(wish.argv, env)
    if sites() != before:
        ask(["find", OWNED, "-user", "0", "-exec", "chown", "-h", f"{os.getuid()}:{os.getgid()}", "{}", "+"], {})
    return status


if __name__ == "__main__":
    sys.exit(main())
