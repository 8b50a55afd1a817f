"""Accounts: the two users that processes run as, their environment, and ways to make system calls under their ids.

Two context managers change the ids of the guest. They are not interchangeable:

- :class:`as_file_user` changes the effective ids only. Use it for paths and sockets.
- :class:`as_process_user` changes the real ids too. Use it to start a program or to change the limits of a process. As
  long as this context is active, processes of the user may signal PID 1.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError

TYPE_CHECKING = False  # importing typing takes time; type checkers treat this name like typing.TYPE_CHECKING

USER_UID = 1000
USER_GID = 1000
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASH = "/bin/bash"
SH = "/bin/sh"

_PASSWD_FIELDS = 7
_GROUP_FIELDS = 4
_MAX_TABLE_BYTES = 1 << 20


class Account:
    """Account that a process runs as.

    Args:
        name: Login name.
        uid: User id.
        gid: Id of the primary group.
        home: Home directory.
        groups: Ids of all groups, including the primary group.
    """

    __slots__ = ("gid", "groups", "home", "name", "uid")

    def __init__(self, name: str, uid: int, gid: int, home: str, groups: list[int]) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.home = home
        self.groups = groups


def lookup_account(name: str) -> Account:
    """Return the account ``root`` or ``user``.

    ``user`` is uid 1000. Login name, gid, home and groups come from the image's /etc/passwd and /etc/group. If the image has no
    uid 1000, the account has the name ``user``, gid 1000 and the home /home/user. If the home does not exist, it is replaced by ``/``.

    Raises:
        RpcError: ``invalid_request``: the name is neither ``root`` nor ``user``.
    """
    if name == "root":
        return Account("root", 0, 0, "/root", [0])
    if name != "user":
        raise RpcError("invalid_request", f"The user {name[:50]!r} is unknown.", "Use 'user' or 'root'.")
    version = _file_version("/etc/passwd"), _file_version("/etc/group")
    if version not in _cached_user:
        _cached_user.clear()
        _cached_user[version] = _read_user()
    login, gid, home, groups = _cached_user[version]
    return Account(login, USER_UID, gid, home if os.path.isdir(home) else "/", groups)


# Module state is allowed here because the guest is one process with one image. In gVisor, opening a file takes longer than
# finding out with stat(2) that the file is unchanged.
_cached_user: dict[tuple[object, object], tuple[str, int, str, list[int]]] = {}
"""Versions of /etc/passwd and /etc/group -> login, gid, home and groups of uid 1000. Holds at most one entry."""


def _file_version(path: str) -> tuple[int, ...] | None:
    """Return a value that changes when the file is replaced or written; None if the file does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_user() -> tuple[str, int, str, list[int]]:
    """Return login, gid, home and groups of uid 1000."""
    login, gid, home = "user", USER_GID, "/home/user"
    for fields in _read_table("/etc/passwd"):
        if len(fields) >= _PASSWD_FIELDS and fields[2] == str(USER_UID):
            login, home = fields[0], fields[5] or "/"
            if fields[3].isdigit():
                gid = int(fields[3])
            break
    groups = {gid}
    for fields in _read_table("/etc/group"):
        if len(fields) >= _GROUP_FIELDS and fields[2].isdigit() and login in fields[3].split(","):
            groups.add(int(fields[2]))
    return login, gid, home, sorted(groups)


def _read_table(path: str) -> list[list[str]]:
    """Return the lines of /etc/passwd or /etc/group, each as its list of fields; empty if the file cannot be read."""
    try:
        # Root in the sandbox may have replaced the file by a FIFO. O_NONBLOCK makes sure that opening a FIFO does not block PID 1.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(fd, _MAX_TABLE_BYTES)
    except OSError:
        return []
    finally:
        os.close(fd)
    return [line.split(":") for line in text.decode("utf-8", "replace").splitlines()]


def build_environment(account: Account, *overrides: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process: the default variables of an account, updated with each of ``overrides`` in order."""
    env = {
        "PATH": (f"{account.home.rstrip('/')}/.local/bin:" if account.uid else "") + DEFAULT_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": BASH if os.path.exists(BASH) else SH,
        "LC_CTYPE": "C.UTF-8",
    }
    for override in overrides:
        env.update(override)
    return env


class as_process_user:  # noqa: N801 - a context manager, named like a function; importing contextlib would cost time
    """Context manager that changes the guest's real and effective ids to those of an account. Does nothing for root.

    Used around two system calls:

    - vfork(2) with exec(2): the program inherits the ids.
    - prlimit(2): a caller that lacks CAP_SYS_RESOURCE must have the same real and effective ids as the process whose limits it changes.

    The saved ids stay 0, so that the guest can restore its own ids. The guest has one thread: no other code runs under these ids.

    While the context is active, processes of the same uid may send signals to the guest, because the guest has their uid as its
    real uid (kill(2)). In gVisor, SIGKILL and signals that report a fault, such as SIGSEGV, then end the guest and with it the
    sandbox. For all other signals, the guest has handlers (main.py). This is no new weakness: every process can end the sandbox
    through ``sudo``.

    Args:
        account: Account to act as.
    """

    __slots__ = ("_account",)

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        if self._account.uid:
            os.setgroups(self._account.groups)
            os.setresgid(self._account.gid, self._account.gid, 0)
            os.setresuid(self._account.uid, self._account.uid, 0)

    def __exit__(self, *_: object) -> None:
        if self._account.uid:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups([0])


class as_file_user:  # noqa: N801 - a context manager, named like a function
    """Context manager that changes the guest's effective ids to those of an account. Does nothing for root.

    Used around system calls on paths and sockets, for which the kernel checks the effective ids. The real and saved uids stay 0,
    so processes of the user cannot send signals to PID 1 while the context is active (kill(2)).

    Args:
        account: Account to act as.
    """

    __slots__ = ("_account",)

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        if self._account.uid:
            os.setgroups(self._account.groups)
            os.setegid(self._account.gid)
            os.seteuid(self._account.uid)

    def __exit__(self, *_: object) -> None:
        if self._account.uid:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups([])
