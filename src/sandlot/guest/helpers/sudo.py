"""``sudo`` of a sandbox: asks the guest to run a program as root, with the standard streams of this process.

The image's ``/usr/bin/sudo`` starts this file on the guest's interpreter. The syntax is ``sudo [-n] [-E] [-H] [-S] [-k] [-u root] [--]
[NAME=VALUE ...] PROGRAM [ARGUMENT ...]``, and ``-i`` or ``-s`` for a shell. No password is needed: the security boundary is the sandbox, not
the user.

If ``/usr/local`` belongs to the caller, as in Sandlot's images, the caller afterwards becomes the owner of files that root has installed there.
Otherwise ``pip install --upgrade`` would fail after ``sudo pip install``. S_ISGID on the folders does not help, because gVisor's overlay loses
this bit.
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
KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "COLUMNS", "LINES", "PATH", "DEBIAN_FRONTEND")
"""Environment variables of the caller that are passed to the program even without the option ``-E``."""

INSTALL_PREFIX = "/usr/local"

USAGE = "usage: sudo [-nEHSk] [-u root] [NAME=VALUE ...] PROGRAM [ARGUMENT ...] | sudo -i | sudo -s"


class UsageError(Exception):
    """The command line of sudo is invalid. The text is printed to the caller."""


class SudoArguments:
    """A parsed command line of sudo.

    Attributes:
        argv: Program to run as root, and its arguments.
        variables: Variables from the command line (``NAME=VALUE``).
        keep: True to pass the caller's whole environment (``-E``).
        shell: True to run a shell (``-i`` or ``-s``).
    """

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.variables: dict[str, str] = {}
        self.keep = False
        self.shell = False

    def option(self, word: str, following: list[str]) -> int:
        """Parse one option or assignment.

        Args:
            word: Next word of the command line.
            following: Words after ``word``.

        Returns:
            Number of words that belong to the option, including its value; 0 if ``word`` is the program to run.

        Raises:
            UsageError: The option is unknown or not supported.
        """
        if word in {"-u", "--user"} and following[:1] not in (["root"], ["0"]):
            raise UsageError("only -u root is supported")
        if word in {"-u", "--user", "-g", "-p"}:
            return 2
        if word in {"-V", "--version"}:
            raise UsageError("this sudo is part of Sandlot and has no version of its own")
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
    """Parse the command line of sudo, without the name of the command.

    Raises:
        UsageError: An option is not supported, or no program is given.
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
    """Run a program as root through the guest, and wait until the program ends.

    Returns:
        Exit code of the program, or 128 + the number of the signal that has ended it. If the program cannot be started, an error is
        printed and 1 is returned.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        link.connect(SOCKET)
    except OSError as error:
        sys.stderr.write(f"sudo: cannot connect to the guest of the sandbox: {error}\n")
        return 1
    message = memoryview(values.encode_message({"op": "sudo", "argv": argv, "env": env, "cwd": os.getcwd()}))
    descriptors = array.array("i", [0, 1, 2])
    sent = link.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    if sent < len(message):  # skip an empty sendall: it would call send(2), which fails if the guest has closed the connection
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
    """Return the modification times of the folders below ``INSTALL_PREFIX`` that installers change.

    Returns:
        Folder relative to the prefix -> modification time in nanoseconds, or 0 if the folder does not exist. Empty if the prefix does
        not belong to the caller.
    """
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
    """Run sudo with the arguments of this process, and return its exit status."""
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
