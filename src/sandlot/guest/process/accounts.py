"""Accounts: the users that processes run as, their environment, and ways to make system calls under their ids.

Two context managers change the ids of the guest. They are not interchangeable:

- :class:`as_file_user` changes the effective ids only. Use it for paths and sockets.
- :class:`as_process_user` changes the real ids too. Use it to start a program or to change the limits of a process. As
  long as this context is active, processes of the user may signal PID 1.
"""

from __future__ import annotations

import os
import stat

from sandlot.guest.errors import RpcError

TYPE_CHECKING = False  # importing typing takes time; type checkers treat this name like typing.TYPE_CHECKING
if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWD = "/etc/passwd"  # noqa: S105 - a path
GROUP = "/etc/group"
USER_UID = 1000
USER_GID = 1000
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASH = "/bin/bash"
SH = "/bin/sh"

MAX_ID = (1 << 32) - 2
"""Largest user or group id. The next number stands for "no change" in setresuid(2)."""
MAX_GROUPS = 1024
"""Number of supplementary groups of a user that are used."""

_PASSWD_FIELDS = 7
_GROUP_FIELDS = 4
_MAX_TABLE_BYTES = 1 << 20
_MAX_PASSWD_LINE_BYTES = 8192
_MAX_CACHED = 64
_MAX_ID_DIGITS = 10


class Account:
    """Account that a process runs as.

    Args:
        name: Login name, or the decimal uid if /etc/passwd has no entry.
        uid: User id.
        gid: Id of the primary group.
        home: Home directory.
        groups: Ids of all groups, including the primary group.
        shell: Login shell; empty if unknown.
    """

    __slots__ = ("gid", "groups", "home", "name", "shell", "uid")

    def __init__(self, name: str, uid: int, gid: int, home: str, groups: list[int], shell: str = "") -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.home = home
        self.groups = groups
        self.shell = shell

    @property
    def is_root(self) -> bool:
        """True if the ids are those of the guest itself."""
        return not self.uid and not self.gid and self.groups == [0]


def lookup_account(user: str) -> Account:
    """Return the account of a user, as login(1) would give it: ids, home, groups and shell come from /etc/passwd and /etc/group.

    If the home does not exist, it is replaced by ``/``.

    Args:
        user: Login name or uid. A group name or gid may follow a colon; the account then has no other group, as in ``docker run --user``.
            ``root`` is uid 0, and ``user`` is uid 1000 with any login name. A uid without an entry has the group 0 and the home ``/``;
            uid 1000 without an entry has the name ``user``, the group 1000 and the home /home/user.

    Raises:
        RpcError: ``invalid_request``: the sandbox has no such user or group, or the kernel allows no such id.
    """
    if user in {"root", "0"}:
        return Account("root", 0, 0, "/root", [0])
    key = _file_version(PASSWD), _file_version(GROUP), user
    found = _cached.get(key)
    if found is None:
        if len(_cached) >= _MAX_CACHED:
            _cached.clear()
        found = _cached[key] = _read_account(user)
    home = found.home if os.path.isdir(found.home) else "/"
    return Account(found.name, found.uid, found.gid, home, found.groups, found.shell)


# Module state is allowed here because the guest is one process with one image. In gVisor, opening a file takes longer than
# finding out with stat(2) that the file is unchanged.
_cached: dict[tuple[object, object, str], Account] = {}
"""Versions of /etc/passwd and /etc/group, user -> account as read from the files."""


def _file_version(path: str) -> tuple[int, ...] | None:
    """Return a value that changes when the file is replaced or written; None if the file does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_account(user: str) -> Account:
    """Read the account of a user from /etc/passwd and /etc/group."""
    login, colon, group = user.partition(":")
    uid = {"root": 0, "user": USER_UID}.get(login, _parse_id(login))
    entry = _find_entry(login if uid is None else None, uid)
    if entry is not None:
        name, uid, gid, home, shell = entry
    elif uid == USER_UID:
        name, gid, home, shell = "user", USER_GID, "/home/user", ""
    elif uid is not None:
        name, gid, home, shell = str(uid), 0, "/", ""
    else:
        raise RpcError("invalid_request", f"The sandbox has no user {login[:100]!r}.", "Pass a name of /etc/passwd in the sandbox, or a numeric uid.")
    groups = [gid]
    if colon:
        gid = _find_group(group)
        groups = [gid]
    elif entry is not None:
        groups = sorted({gid, *_groups_of(name)})
    account = Account(name, uid, gid, home, groups, shell)
    try:
        with as_file_user(account):  # in a user namespace, the kernel refuses ids that the namespace does not map
            return account
    except OSError as error:
        raise RpcError(
            "invalid_request", f"The sandbox has no user {user[:100]!r}: its ids are refused ({error.strerror}).", "Pass ids from 0 to 65535."
        ) from None


def _find_entry(name: str | None, uid: int | None) -> tuple[str, int, int, str, str] | None:
    """Return name, uid, gid, home and shell of the first valid entry of /etc/passwd with a name, or with a uid if the name is None."""
    for line in _lines(PASSWD):
        if len(line) > _MAX_PASSWD_LINE_BYTES or b"\0" in line:
            continue
        fields = os.fsdecode(line).split(":")
        if len(fields) < _PASSWD_FIELDS or not fields[0]:
            continue
        found_uid, gid = _parse_id(fields[2]), _parse_id(fields[3])
        if found_uid is not None and gid is not None and (fields[0] == name or (name is None and found_uid == uid)):
            return fields[0], found_uid, gid, fields[5] or "/", fields[6]
    return None


def _find_group(group: str) -> int:
    """Return the id of a group, given its name or id."""
    gid = _parse_id(group)
    if gid is not None:
        return gid
    start = os.fsencode(group) + b":"
    for line in _lines(GROUP):
        fields = line.split(b":", _GROUP_FIELDS)
        if line.startswith(start) and len(fields) >= _GROUP_FIELDS and (gid := _parse_id(os.fsdecode(fields[2]))) is not None:
            return gid
    raise RpcError("invalid_request", f"The sandbox has no group {group[:100]!r}.", "Pass a name of /etc/group in the sandbox, or a numeric gid.")


def _groups_of(name: str) -> set[int]:
    """Return the ids of the groups of which a user is a member, at most ``MAX_GROUPS``."""
    found: set[int] = set()
    member = os.fsencode(name)
    for line in _lines(GROUP):
        if member not in line:
            continue
        fields = line.split(b":")
        if len(fields) >= _GROUP_FIELDS and member in fields[3].split(b",") and (gid := _parse_id(os.fsdecode(fields[2]))) is not None:
            found.add(gid)
            if len(found) >= MAX_GROUPS:
                break
    return found


def _parse_id(text: str) -> int | None:
    """Return the number of a decimal user or group id; None if the text is no id."""
    return int(text) if len(text) <= _MAX_ID_DIGITS and text.isascii() and text.isdigit() and int(text) <= MAX_ID else None


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of the first MiB of a regular file; none if the file cannot be read. Programs in the sandbox can replace the file."""
    try:
        # Opening a FIFO without O_NONBLOCK would block PID 1.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        text = os.read(fd, _MAX_TABLE_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return
    finally:
        os.close(fd)
    start = 0
    while start < len(text):  # one line at a time: a list of all lines of a hostile file takes 50 times the memory of the file
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end + 1


def build_environment(account: Account, *overrides: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process: the default variables of an account, updated with each of ``overrides`` in order."""
    env = {
        "PATH": (f"{account.home.rstrip('/')}/.local/bin:" if account.uid else "") + DEFAULT_PATH,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell if account.shell and os.path.exists(account.shell) else BASH if os.path.exists(BASH) else SH,
        "LC_CTYPE": "C.UTF-8",
    }
    for override in overrides:
        env.update(override)
    return env


class as_process_user:  # noqa: N801 - a context manager, named like a function; importing contextlib would cost time
    """Context manager that changes the guest's real and effective ids to those of an account. Does nothing for root with the group root.

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
        if not self._account.is_root:
            try:
                os.setgroups(self._account.groups)
                os.setresgid(self._account.gid, self._account.gid, 0)
                os.setresuid(self._account.uid, self._account.uid, 0)
            except OSError:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        if not self._account.is_root:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups([0])


class as_file_user:  # noqa: N801 - a context manager, named like a function
    """Context manager that changes the guest's effective ids to those of an account. Does nothing for root with the group root.

    Used around system calls on paths and sockets, for which the kernel checks the effective ids. The real and saved uids stay 0,
    so processes of the user cannot send signals to PID 1 while the context is active (kill(2)).

    Args:
        account: Account to act as.
    """

    __slots__ = ("_account",)

    def __init__(self, account: Account) -> None:
        self._account = account

    def __enter__(self) -> None:
        if not self._account.is_root:
            try:
                os.setgroups(self._account.groups)
                os.setegid(self._account.gid)
                os.seteuid(self._account.uid)
            except OSError:
                self.__exit__()
                raise

    def __exit__(self, *_: object) -> None:
        if not self._account.is_root:
            os.seteuid(0)
            os.setegid(0)
            os.setgroups([])
