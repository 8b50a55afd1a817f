"""A service's data directory: private, locked by one service, and carrying the name of its node.

Laws:
- Nobody but its owner may enter it; that is what guards the unix socket.
- One service at a time: flock(2), which the kernel lets go of however the service ends. A second one is told who is first.
- It has a format number: a directory of another format is refused before anything in it is read or changed.
- It belongs to one database: with another one nothing is begun, because what that does not know is removed.
- The node's id is made once and never changes, because what a killed service left behind is found by it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sandlot.host import durable
from sandlot.host.locked_folder import lock_folder
from sandlot.model.errors import ConflictError, ErrorCode, HostError
from sandlot.model.ids import NODE_ID, NodeId, new_node_id

DATA_FORMAT: Final = 5
"""Number of the format of all that a service stores. Raise it in every commit after which a service would misread what the commit before stored: a
file or its name in the data directory, a table or a field of the database, a digest, an id, a message to a sandbox that keeps running."""

DATABASE = "sandlot.db"
FORMAT = "format"
LOCK = "lock"
NODE = "node"
SIGNING = "signing.key"
STORE = "store"
_SECRET_BYTES = 32
_STRANGERS = 0o077


def prepare_data_dir(folder: Path) -> None:
    """Make the directory, or see to it that it is private.

    Raises:
        HostError: It cannot be made, belongs to somebody else, or is open to others and holds what is not ours.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            raise HostError(
                f"The data directory {folder} belongs to user {found.st_uid}, not to the one who starts this service ({os.geteuid()}).",
                code=ErrorCode.HOST_NOT_READY,
                hint="Start the service as its owner, or set SANDLOT_DATA_DIR to another directory.",
            )
        if found.st_mode & _STRANGERS:
            # Never narrow a directory that somebody named by mistake, such as /tmp.
            if not (folder / NODE).exists() and any(folder.iterdir()):
                raise HostError(
                    f"The data directory {folder} is open to other users and holds other files.",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="Set SANDLOT_DATA_DIR to a directory of its own, or make this one private (chmod 700) if it is meant.",
                )
            folder.chmod(0o700)
    except OSError as error:
        raise HostError(
            f"The data directory {folder} cannot be used: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Start the service as root, or set SANDLOT_DATA_DIR to a directory that you may write to.",
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the one service of a data directory.

    Raises:
        ConflictError: There is one already; names its process.
    """
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise ConflictError(
                f"Another service runs on {folder}: process {pid}.",
                code=ErrorCode.CONFLICT,
                hint="Use that one, end it with 'sandlot stop', or set SANDLOT_DATA_DIR to another directory.",
                fields={"pid": pid},
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def check_format(folder: Path) -> None:
    """Write the format number into a new data directory, or refuse a directory that has another one.

    Call it before anything else in the directory is opened. Files that exist before the first start, such as a log, do not matter.

    Raises:
        HostError: The directory has another format number, none that can be read, or was written before there were format numbers.
    """
    file = folder / FORMAT
    try:
        lock = lock_folder(folder)  # `sandlot keys` may open a new directory at the same time
        try:
            text = file.read_text("ascii", "replace").strip() if file.exists() else None
            if text is None and not any((folder / name).exists() for name in (NODE, DATABASE)):
                durable.write_file(file, f"{DATA_FORMAT}\n".encode())
                return
        finally:
            os.close(lock)
    except OSError as error:
        raise HostError(
            f"{file} cannot be used: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Make it readable, and the data directory writable.",
        ) from error
    if text == str(DATA_FORMAT):
        return
    if text is None or text.isdecimal():
        found = "no format number" if text is None else f"format {text}"
        raise HostError(
            f"The data directory {folder} has {found}; this version of Sandlot uses format {DATA_FORMAT}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Set SANDLOT_DATA_DIR to an empty directory, or start the version of Sandlot that wrote this one.",
        )
    raise HostError(
        f"{file} holds {text[:64]!r} instead of a format number.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Restore the file from a backup, or set SANDLOT_DATA_DIR to an empty directory.",
    )


def node(folder: Path) -> NodeId:
    """The node's id; made where there is none. Call it while holding the lock.

    Raises:
        HostError: The file holds something else.
    """
    file = folder / NODE
    try:
        text = file.read_text("ascii").strip()
    except FileNotFoundError:
        made = new_node_id()
        durable.write_file(file, f"{made}\n".encode())
        return made
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_node(file) from error
    if NODE_ID.fullmatch(text) is None:
        raise _bad_node(file)
    return NodeId(text)


def check_database(folder: Path, identity: str) -> None:
    """See to it that the directory's database is the one that it had; one that had none yet has this one from now on.

    Args:
        folder: The directory; its lock is held.
        identity: What tells the database that was opened from every other one.

    Raises:
        HostError: It is another one, or the file cannot be read or written.
    """
    file = folder / STORE
    try:
        found = file.read_text("ascii", "replace").strip() if file.exists() else None
        if found is None:
            durable.write_file(file, f"{identity}\n".encode())
            return
    except OSError as error:
        raise HostError(
            f"{file} cannot be used: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Make it readable, and the data directory writable.",
        ) from error
    if found != identity:
        raise HostError(
            f"The database that is set is not the one that the data directory {folder} belongs to: files and sandboxes of it would be removed.",
            code=ErrorCode.HOST_NOT_READY,
            hint=f"Set SANDLOT_DATABASE_URL, or restore sandlot.db, as it was. If this database is meant, remove {file} and start again: "
            "uploaded files and live sandboxes that it does not know are removed then.",
        )


def secret(folder: Path) -> bytes:
    """What this service signs with: 32 random bytes; made where there are none. Call it while holding the lock.

    Raises:
        HostError: The file holds something else.
    """
    file = folder / SIGNING
    try:
        found = file.read_bytes()
    except FileNotFoundError:
        made = os.urandom(_SECRET_BYTES)
        durable.write_file(file, made)
        return made
    except OSError as error:
        raise _bad_secret(file) from error
    if len(found) != _SECRET_BYTES:
        raise _bad_secret(file)
    return found


def _bad_secret(file: Path) -> HostError:
    return HostError(
        f"{file} does not hold the secret that this service signs with.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Remove it: a new one is made, and URLs that were signed before are refused.",
    )


def _bad_node(file: Path) -> HostError:
    return HostError(
        f"{file} does not hold the id of a node.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Restore it. If you remove it, what an earlier service left running is not found any more.",
    )
