"""``sudo`` of a sandbox: requests the guest to run a program as root, with the standard streams of this process.

It runs on the guest's interpreter, started by ``/usr/bin/sudo`` of the image. It accepts ``sudo [-n] [-E] [-H] [-S] [-k] [-u root] [--]
[NAME=VALUE ...] PROGRAM [ARGUMENT ...]``, and ``-i`` or ``-s`` for a shell. No password is needed: the security boundary is the sandbox, not
the user.

If ``/usr/local`` belongs to the caller, as in Sandlot's images, files that root installs there are given to the caller afterwards. Otherwise
``pip install --upgrade`` would fail after ``sudo pip install``. (S_ISGID does not help: gVisor's overlay loses that bit.)
"""

from __future__ import annotations

import array
import os
import signal
import socket
import sys

sys.path.insert(0, "/.sandlot/helpers")
import values  # type: ignore[import-not-found]  # shipped beside this file

SOCKET = "/run/sandlot/guest.sock"
KEPT_VARIABLES = ("LANG", "LC_ALL", "TERM", "TZ", "COLUMNS", "LINES", "PATH", "DEBIAN_FRONTEND")
"""Variables of the caller that root gets without ``-E``."""

INSTALL_PREFIX = "/usr/local"

USAGE = "usage: sudo [-nEHSk] [-u root] [NAME=VALUE ...] PROGRAM [ARGUMENT ...] | sudo -i | sudo -s"


class UsageError(Exception):
    """The command line is invalid."""


class SudoArguments:
    """A parsed command line."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.variables: dict[str, str] = {}
        self.keep = False
        self.shell = False

    def option(self, word: str, following: list[str]) -> int:
        """Parse one option or assignment, and return its number of words; 0 if ``word`` is the program."""
        if word in {"-u", "--user"} and following[:1] not in (["root"], ["0"]):
            raise UsageError("only -u root is supported")
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


def parse(arguments: list[str]) -> SudoArguments:
    """Parse a command line.

    Raises:
        UsageError: The command line is invalid.
    """
    parsed = SudoArguments()
    at = 0
    while at < len(arguments):
        if arguments[at] == "--":
            at += 1
            break
        words = parsed.option(arguments[at], arguments[at + 1 :])
        if not words:
            break
        at += words
    parsed.argv = arguments[at:]
    if parsed.shell:
        shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        parsed.argv = [shell, "-c", " ".join(parsed.argv)] if parsed.argv else [shell]
    if not parsed.argv:
        raise UsageError(USAGE)
    return parsed


def run_as_root(argv: list[str], env: dict[str, str]) -> int:
    """Run a program as root, and return its exit status."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(SOCKET)
    except OSError as error:
        sys.stderr.write(f"sudo: cannot connect to the guest of the sandbox: {error}\n")
        return 1
    message = memoryview(values.encode_message({"op": "sudo", "argv": argv, "env": env, "cwd": os.getcwd()}))
    descriptors = array.array("i", [0, 1, 2])
    sent = link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    if sent < len(message):  # even an empty sendall calls send(2), which fails if the program has ended by then
        link.sendall(message[sent:])
    reader = values.MessageReader()
    while part := link.recv(65536):
        reader.feed(part)
    reply = next(reader.messages(), {"error": "the guest closed the connection without a response"})
    if "error" in reply:
        sys.stderr.write(f"sudo: {reply['error']}\n")
        return 1
    return int(reply["status"])


def install_times() -> dict[str, int]:
    """Return the modification times in nanoseconds of the folders that installers change; empty if the caller does not own the prefix."""
    found: dict[str, int] = {}
    try:
        if os.stat(INSTALL_PREFIX).st_uid != os.getuid():
            return found
        pythons = [name for name in os.listdir(f"{INSTALL_PREFIX}/lib") if name.startswith("python3")]
        folders = ["bin", "lib/node_modules", *(f"lib/{name}/dist-packages" for name in pythons)]
    except OSError:
        return found
    for folder in folders:
        try:
            found[folder] = os.stat(f"{INSTALL_PREFIX}/{folder}").st_mtime_ns
        except OSError:
            found[folder] = 0
    return found


def main() -> int:
    """Run the command line, and return the exit status."""
    try:
        parsed = parse(sys.argv[1:])
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    env = {name: value for name, value in os.environ.items() if parsed.keep or name in KEPT_VARIABLES}
    env.update(parsed.variables)
    env["SUDO_USER"] = os.environ.get("USER", "user")
    env["SUDO_UID"] = str(os.getuid())
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    before = install_times()
    status = run_as_root(parsed.argv, env)
    if install_times() != before:
        run_as_root(["find", INSTALL_PREFIX, "-user", "0", "-exec", "chown", "-h", f"{os.getuid()}:{os.getgid()}", "{}", "+"], {})
    return status


if __name__ == "__main__":
    sys.exit(main())
