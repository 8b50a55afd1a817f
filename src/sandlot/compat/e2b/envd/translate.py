"""Translation between envd and the node: users, paths, processes, entries and events. Pure."""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
import signal as signals
import stat
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from sandlot.compat.e2b.envd.schemas import ProcessConfig, Pty, StartMessage
from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, UnsupportedError
from sandlot.model.executions import Channel, ProcessInfo, ProcessOutcome
from sandlot.model.files import Entry, FileEvent, FileEventKind
from sandlot.model.specs import MAX_TIMEOUT_S, ProcessSpec, User

ROWS, COLS = 24, 80
"""Default size of a terminal."""

SIGNALS: Mapping[str | int, int] = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9, 15: 15, 9: 9}
"""``process.Signal``, by name and by number."""

TYPES: Mapping[str, str] = {"file": "FILE_TYPE_FILE", "directory": "FILE_TYPE_DIRECTORY", "symlink": "FILE_TYPE_SYMLINK"}
OTHER_TYPE = "FILE_TYPE_UNSPECIFIED"
METADATA_HEADER, METADATA_PREFIX = "x-metadata-", "user.e2b."
"""Prefix of the headers with the metadata of an upload, and of the names of the extended attributes that store them."""
MAX_ATTRIBUTE_NAME_BYTES, MAX_METADATA_BYTES = 255, 4096
"""Limits of xattr(7), and of ext4 for all attributes of a file."""
_NAMES: Mapping[int, str] = {0: "root", 1000: "user"}

CREATE, WRITE, REMOVE, RENAME, CHMOD = (f"EVENT_TYPE_{word}" for word in ("CREATE", "WRITE", "REMOVE", "RENAME", "CHMOD"))
_KINDS: Mapping[str, str] = {FileEventKind.CREATED: CREATE, FileEventKind.MODIFIED: WRITE, FileEventKind.REMOVED: REMOVE}
"""Kind of event -> type of E2B. A mode that a program changes is a modification."""

_PART = re.compile(r"\.[0-9a-f]{32}\.part")
"""Names of incomplete uploads (``guest/fs/transfers.py``)."""

KEEPALIVE: Mapping[str, Any] = {"event": {"keepalive": {}}}
WATCH_KEEPALIVE: Mapping[str, Any] = {"keepalive": {}}
PING_S, PING_MOST_S = 50.0, 3600.0


def user(name: str, default: User = User.USER) -> User:
    """Return a user by name or uid.

    Args:
        name: Name or uid; empty: the default user.
        default: Default user of the sandbox.

    Raises:
        AuthenticationError: The name cannot be that of a user.
    """
    with suppress(InvalidRequestError):
        found = User(name) if name else default
        if ":" not in name:  # a colon would make signatures of URLs ambiguous
            return found
    raise AuthenticationError(f"{name[:50]!r} is not a user.", code=ErrorCode.UNAUTHENTICATED, hint="Pass a login name of the sandbox.")


def basic_user(authorization: str, default: User) -> User:
    """Return the user of an ``Authorization: Basic`` header (RFC 7617), whose password is ignored.

    Args:
        authorization: The header.
        default: Default user of the sandbox, for a request that names none.

    Raises:
        AuthenticationError: The header is not valid.
    """
    scheme, _, coded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return default
    try:
        name = base64.b64decode(coded.strip(), validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        name = "?"
    return user(name, default)


def absolute(path: str, home: str) -> str:
    """Return the absolute path. Relative paths begin in the user's home directory, which is also ``~``."""
    if path.startswith("/"):
        return path
    relative = path.removeprefix("~/").strip("/")
    return home if relative in {"", "~", "."} else f"{home.rstrip('/')}/{relative}"


def process_spec(message: StartMessage, user: User, home: str, folder: str, timeout_s: float | None) -> ProcessSpec:
    """Return the process to start.

    Args:
        message: Message of the client.
        user: User of the process.
        home: Home directory of the user, at which relative paths begin.
        folder: Working directory of a process whose message names none.
        timeout_s: Seconds until the process is killed. None: no timeout.

    Raises:
        InvalidRequestError: The command is empty, or a value is out of bounds.
    """
    config: ProcessConfig = message.process
    rows, cols = (None, None) if message.pty is None else terminal_size(message.pty)
    return ProcessSpec(
        argv=(config.cmd, *config.args),
        env=config.envs,
        cwd=absolute(config.cwd, home) if config.cwd else folder,
        user=user,
        stdin=message.stdin,
        timeout_s=None if not timeout_s else min(timeout_s, MAX_TIMEOUT_S),
        rows=rows,
        cols=cols,
        tag=message.tag,
    )


def terminal_size(pty: Pty) -> tuple[int, int]:
    """Return rows and columns of a terminal."""
    return pty.size.rows or ROWS, pty.size.cols or COLS


def signal(signal: str | int) -> int:
    """Return the number of a signal.

    Raises:
        UnsupportedError: E2B does not have the signal.
    """
    number = SIGNALS.get(signal)
    if number is None:
        raise UnsupportedError(
            f"Signal {str(signal)[:40]!r} cannot be sent.", code=ErrorCode.UNSUPPORTED, hint="Use SIGNAL_SIGTERM or SIGNAL_SIGKILL."
        )
    return number


def started(pid: int) -> dict[str, Any]:
    """Return the event of a started process."""
    return {"event": {"start": {"pid": pid}}}


def output(channel: int, data: bytes, *, pty: bool) -> dict[str, Any]:
    """Return the event of output."""
    name = "pty" if pty else "stderr" if channel == Channel.STDERR else "stdout"
    return {"event": {"data": {name: base64.b64encode(data).decode()}}}


def ended(outcome: ProcessOutcome) -> dict[str, Any]:
    """Return the event of the end of a process, in the format of Go's ``os.ProcessState``, which envd uses."""
    if outcome.signal is not None:
        status = f"signal: {_signal_name(outcome.signal)}"
        reasons = {"oom": " (it took more memory than the sandbox has)", "pids": " (it had more processes than the sandbox may)"}
        return _end(-1, status, exited=False, error=status + reasons.get(outcome.reason, ""))
    status = f"exit status {outcome.exit_code}"
    return _end(outcome.exit_code, status, exited=True, error=status if outcome.exit_code else None)


def _end(code: int, status: str, *, exited: bool, error: str | None) -> dict[str, Any]:
    event: dict[str, Any] = {"exitCode": code, "exited": exited, "status": status}
    return {"event": {"end": event if error is None else {**event, "error": error}}}


def _signal_name(number: int) -> str:
    try:
        return (signals.strsignal(number) or str(number)).lower()
    except ValueError:
        return str(number)


def process(info: ProcessInfo) -> dict[str, Any]:
    """Return a process of a list."""
    config = {"cmd": info.argv[0] if info.argv else "", "args": list(info.argv[1:]), "envs": dict(info.env)}
    shown: dict[str, Any] = {"pid": info.pid, "config": config if info.cwd is None else {**config, "cwd": info.cwd}}
    return shown if info.tag is None else {**shown, "tag": info.tag}


def entry(entry: Entry, target: Entry | None = None) -> dict[str, Any]:
    """Return a ``filesystem.EntryInfo``.

    A symbolic link has the type and mode of its target. The type of a link that leads nowhere is unspecified.

    Args:
        entry: The entry.
        target: Entry to which a symbolic link leads through all links. None: the entry is no link, or the link leads nowhere.
    """
    seconds, nanos = divmod(max(0, entry.modified_ns), 1_000_000_000)
    info = {
        "name": entry.name,
        "type": TYPES.get(entry.kind, OTHER_TYPE),
        "path": entry.path,
        "size": str(entry.size),
        "mode": entry.mode & 0o777,
        "permissions": permissions(entry.kind, entry.mode),
        "owner": _NAMES.get(entry.uid, str(entry.uid)),
        "group": _NAMES.get(entry.gid, str(entry.gid)),
        "modifiedTime": f"{_date(seconds)}.{nanos:09d}Z",
    }
    if entry.kind == "symlink":
        info["type"] = OTHER_TYPE if target is None else TYPES.get(target.kind, OTHER_TYPE)
        info["mode"] = 0 if target is None else target.mode & 0o777
        info["symlinkTarget"] = entry.path if target is None else target.path
    if entry.attributes:
        info["metadata"] = metadata_of(entry.attributes)
    return info


def metadata_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a file, which are its extended attributes with names that begin with :data:`METADATA_PREFIX`."""
    return {name.removeprefix(METADATA_PREFIX): value for name, value in attributes.items()}


def metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the extended attributes for the metadata in the headers of an upload.

    Raises:
        InvalidRequestError: The name or value is empty, not printable ASCII or too long.
    """
    attributes = {METADATA_PREFIX + name.removeprefix(METADATA_HEADER): value for name, value in headers.items() if name.startswith(METADATA_HEADER)}
    for name, value in attributes.items():
        if name == METADATA_PREFIX or len(name) > MAX_ATTRIBUTE_NAME_BYTES or not (value.isascii() and (not value or value.isprintable())):
            raise InvalidRequestError(
                f"The metadata {name.removeprefix(METADATA_PREFIX)[:40]!r} is invalid.",
                hint=f"Use printable ASCII, and keys of 1 to {MAX_ATTRIBUTE_NAME_BYTES - len(METADATA_PREFIX)} characters.",
            )
    if sum(len(name) + len(value) for name, value in attributes.items()) > MAX_METADATA_BYTES:
        raise InvalidRequestError(f"The metadata of a file has more than {MAX_METADATA_BYTES} bytes.", hint="Pass less metadata.")
    return attributes


def _date(seconds: int) -> str:
    """Return a date, limited to the range of RFC 3339."""
    return datetime.fromtimestamp(min(seconds, 253_402_300_799), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def permissions(kind: str, mode: int) -> str:
    """Return a mode in the format of Go (``io/fs.FileMode.String``)."""
    letters = {"directory": "d", "symlink": "L"}.get(kind, "")
    for bit, letter in ((stat.S_ISUID, "u"), (stat.S_ISGID, "g"), (stat.S_ISVTX, "t")):
        letters += letter if mode & bit else ""
    return (letters or "-") + "".join(letter if mode >> 8 - at & 1 else "-" for at, letter in enumerate("rwxrwxrwx"))


def file_events(event: FileEvent, root: str) -> list[dict[str, Any]]:
    """Return an event of a watched directory as events of E2B. A move is a rename of the old path and a creation of the new path.

    An upload through this service writes a temporary file and moves it; its events are those of E2B for
    a new file at the final path: a creation, a change of its owner, and a write.

    Args:
        event: The event.
        root: The directory as the client named it.
    """
    if _PART.fullmatch(posixpath.basename(event.path)):
        return []
    if event.kind is FileEventKind.MOVED and _PART.fullmatch(posixpath.basename(event.source or "")):
        name = _relative(event.path, root)
        return [{"name": name, "type": kind} for kind in (CREATE, CHMOD, WRITE)]
    if event.kind is FileEventKind.MOVED:
        return [{"name": _relative(event.source or "", root), "type": RENAME}, {"name": _relative(event.path, root), "type": CREATE}]
    kind = _KINDS.get(event.kind)
    return [] if kind is None else [{"name": _relative(event.path, root), "type": kind}]


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root.rstrip("/") + "/")


def ping_s(given: str) -> float:
    """Return the interval of keep-alive messages from the header ``Keepalive-Ping-Interval``, in whole seconds.

    Raises:
        InvalidRequestError: The value is not a positive number of at most nine digits.
    """
    if not given:
        return PING_S
    if not (given.isascii() and given.isdecimal() and len(given) <= 9 and int(given)):  # noqa: PLR2004 - longer numbers are not intervals
        raise InvalidRequestError(f"Keepalive-Ping-Interval is {given[:20]!r}.", hint="Pass a number of seconds.")
    return min(float(given), PING_MOST_S)
