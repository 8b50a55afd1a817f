"""Words of a sandbox's inside into ours and back. Pure."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
import signal as signals
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sandlot.compat.e2b.envd.schemas import Config, Pty, StartMessage
from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, UnsupportedError
from sandlot.model.executions import Channel, ProcessInfo, ProcessOutcome
from sandlot.model.files import Entry, FileEvent, FileEventKind
from sandlot.model.specs import MAX_TIMEOUT_S, ProcessSpec, User

HOMES: Mapping[User, str] = {User.USER: "/home/user", User.ROOT: "/root"}

ROWS, COLS = 24, 80
"""Of a terminal whose size nobody says."""

SIGNALS: Mapping[str | int, int] = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9, 15: 15, 9: 9}
"""``process.Signal``, by name and by number."""

TYPES: Mapping[str, str] = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
OTHER_TYPE = "FILE_TYPE_UNSPECIFIED"
_NAMES: Mapping[int, str] = {0: "root", 1000: "user"}

CREATE, WRITE, REMOVE, RENAME = (f"EVENT_TYPE_{word}" for word in ("CREATE", "WRITE", "REMOVE", "RENAME"))
_KINDS: Mapping[str, str] = {FileEventKind.CREATED: CREATE, FileEventKind.MODIFIED: WRITE, FileEventKind.REMOVED: REMOVE}
"""A changed mode is a modification here: EVENT_TYPE_CHMOD is never told."""

_PART = re.compile(r"\.[0-9a-f]{32}\.part")
"""What a file is called until all of it has come (``guest/fs/transfers.py``)."""

KEEPALIVE: Mapping[str, Any] = {"event": {"keepalive": {}}}
WATCH_KEEPALIVE: Mapping[str, Any] = {"keepalive": {}}
PING_S, PING_MOST_S = 50.0, 3600.0


def user(name: str) -> User:
    """Who that is.

    Raises:
        AuthenticationError: Nobody that there is in a sandbox.
    """
    try:
        return User(name or "user")
    except ValueError:
        raise AuthenticationError(
            f"There is no user {name[:50]!r} in the sandbox.", code=ErrorCode.UNAUTHENTICATED, hint="There are 'user' and 'root'."
        ) from None


def basic_user(authorization: str) -> User:
    """Who an ``Authorization: Basic`` header names (RFC 7617): a name, and no password that matters.

    Raises:
        AuthenticationError: Nobody that there is in a sandbox.
    """
    scheme, _, coded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return User.USER
    try:
        name = base64.b64decode(coded.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        name = "?"
    return user(name)


def absolute(path: str, who: User) -> str:
    """A path as E2B means it: relative to the user's home, which ``~`` is as well."""
    if path.startswith("/"):
        return path
    inside = path.removeprefix("~/").strip("/")
    return HOMES[who] if inside in {"", "~", "."} else f"{HOMES[who]}/{inside}"


def spec(message: StartMessage, who: User, timeout_s: float | None) -> ProcessSpec:
    """The process that is to be started.

    Args:
        message: What is asked.
        who: As whom.
        timeout_s: After which it is killed; None is never.

    Raises:
        InvalidRequestError: It has no command, or is out of bounds.
    """
    asked: Config = message.process
    rows, cols = (None, None) if message.pty is None else screen(message.pty)
    return ProcessSpec(
        argv=(asked.cmd, *asked.args),
        env=asked.envs,
        cwd=absolute(asked.cwd or "", who),
        user=who,
        stdin=message.stdin,
        timeout_s=None if not timeout_s else min(timeout_s, MAX_TIMEOUT_S),
        rows=rows,
        cols=cols,
        tag=message.tag,
    )


def screen(pty: Pty) -> tuple[int, int]:
    """A terminal's rows and columns."""
    return pty.size.rows or ROWS, pty.size.cols or COLS


def signal(asked: str | int) -> int:
    """The number of a signal.

    Raises:
        UnsupportedError: One that E2B does not have.
    """
    number = SIGNALS.get(asked)
    if number is None:
        raise UnsupportedError(
            f"Signal {str(asked)[:40]!r} cannot be sent.", code=ErrorCode.UNSUPPORTED, hint="There are SIGNAL_SIGTERM and SIGNAL_SIGKILL."
        )
    return number


def started(pid: int) -> dict[str, Any]:
    """The event that a process runs."""
    return {"event": {"start": {"pid": pid}}}


def output(channel: int, data: bytes, *, pty: bool) -> dict[str, Any]:
    """The event of what it wrote."""
    name = "pty" if pty else "stderr" if channel == Channel.STDERR else "stdout"
    return {"event": {"data": {name: base64.b64encode(data).decode()}}}


def ended(outcome: ProcessOutcome) -> dict[str, Any]:
    """The event of its end, in the words of Go's ``os.ProcessState``, which E2B's daemon passes on."""
    if outcome.signal is not None:
        status = f"signal: {_signal_name(outcome.signal)}"
        why = {"oom": " (it took more memory than the sandbox has)", "pids": " (it had more processes than the sandbox may)"}
        return _end(-1, status, exited=False, error=status + why.get(outcome.reason, ""))
    status = f"exit status {outcome.exit_code}"
    return _end(outcome.exit_code, status, exited=True, error=status if outcome.exit_code else None)


def _end(code: int, status: str, *, exited: bool, error: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {"exitCode": code, "exited": exited, "status": status}
    return {"event": {"end": told if error is None else {**told, "error": error}}}


def _signal_name(number: int) -> str:
    try:
        return (signals.strsignal(number) or str(number)).lower()
    except ValueError:
        return str(number)


def process(info: ProcessInfo) -> dict[str, Any]:
    """One process of a list."""
    config = {"cmd": info.argv[0] if info.argv else "", "args": list(info.argv[1:]), "envs": dict(info.env)}
    told: dict[str, Any] = {"pid": info.pid, "config": config if info.cwd is None else {**config, "cwd": info.cwd}}
    return told if info.tag is None else {**told, "tag": info.tag}


def entry(found: Entry) -> dict[str, Any]:
    """What is at a path: ``filesystem.EntryInfo``. A link is told as a link, with where it leads."""
    seconds, nanos = divmod(max(0, found.modified_ns), 1_000_000_000)
    told = {
        "name": found.name,
        "type": TYPES.get(found.kind, OTHER_TYPE),
        "path": found.path,
        "size": str(found.size),
        "mode": found.mode & 0o777,
        "permissions": permissions(found.kind, found.mode),
        "owner": _NAMES.get(found.uid, str(found.uid)),
        "group": _NAMES.get(found.gid, str(found.gid)),
        "modifiedTime": f"{_date(seconds)}.{nanos:09d}Z",
    }
    if found.kind == "symlink":
        told["isSymlink"] = True
        told["symlinkTarget"] = posixpath.normpath(posixpath.join(posixpath.dirname(found.path), found.target or ""))
    return told


def _date(seconds: int) -> str:
    """As far as RFC 3339 goes."""
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def permissions(kind: str, mode: int) -> str:
    """A mode as Go writes it (``io/fs.FileMode.String``)."""
    letters = {"directory": "d", "symlink": "L"}.get(kind, "")
    for bit, letter in ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t")):
        letters += letter if mode & bit else ""
    return (letters or "-") + "".join(letter if mode >> 8 - at & 1 else "-" for at, letter in enumerate("rwxrwxrwx"))


def happened(event: FileEvent, root: str) -> list[dict[str, Any]]:
    """One thing that happened in a watched folder, as events of E2B's: what was moved is renamed in its old place and created in its new one.

    A file that was written through this service was written beside its place and moved there, which nobody is told: it was created and written.

    Args:
        event: It.
        root: The folder, as whoever asked for the watch named it.
    """
    if _PART.fullmatch(posixpath.basename(event.path)):
        return []
    if event.kind is FileEventKind.MOVED and _PART.fullmatch(posixpath.basename(event.source or "")):
        name = _inside(event.path, root)
        return [{"name": name, "type": CREATE}, {"name": name, "type": WRITE}]
    if event.kind is FileEventKind.MOVED:
        return [{"name": _inside(event.source or "", root), "type": RENAME}, {"name": _inside(event.path, root), "type": CREATE}]
    kind = _KINDS.get(event.kind)
    return [] if kind is None else [{"name": _inside(event.path, root), "type": kind}]


def _inside(path: str, root: str) -> str:
    return path.removeprefix(root.rstrip("/") + "/")


def ping_s(given: str) -> float:
    """How often a stream that has nothing to tell says so: ``Keepalive-Ping-Interval``, whole seconds.

    Raises:
        InvalidRequestError: It is none.
    """
    if not given:
        return PING_S
    if not (given.isascii() and given.isdecimal() and len(given) <= 9 and int(given)):  # noqa: PLR2004 - more is no interval
        raise InvalidRequestError(f"Keepalive-Ping-Interval is {given[:20]!r}.", hint="It is a number of seconds.")
    return min(float(given), PING_MOST_S)
