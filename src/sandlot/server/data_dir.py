"""Data directory of a service.

Invariants:
- Only the owner of the directory can enter it. This protects the unix socket.
- One service uses the directory at a time. It holds a lock by flock(2), which the kernel releases however the service ends.
- The directory has a format number. A directory of another format is refused before anything in it is read or changed.
- The directory belongs to one database. The service refuses to start with another one, because it removes everything that its database does not know.
- The node's id is created once and never changes, because the sandboxes that a killed service left are found by this id.
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

DATA_FORMAT: Final = 14
"""Number of the format of all that a service stores. Raise it in every commit after which a service would misread what the commit before stored: a
file or its name in the data directory, a table or a field of the database, a digest, an id, a message to a sandbox that keeps running."""

DATABASE = "sandlot.db"
FORMAT = "format"
LOCK = "lock"
LOG = "service.log"
"""File that receives the standard error of a local service."""
NODE = "node"
SIGNING = "signing.key"
STORE = "store"
_SECRET_BYTES = 32
_GROUP_AND_OTHERS = 0o077


def prepare_data_dir(folder: Path) -> None:
    """Create the directory with mode 0700, or correct the mode of an existing directory of a service.

    Raises:
        HostError: The directory cannot be created, belongs to another user, or is accessible to other users and contains other files.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            raise HostError(
                f"The data directory {folder} belongs to user {found.st_uid}; this process runs as user {os.geteuid()}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Start the service as the owner of the directory, or set SANDLOT_DATA_DIR to another directory.",
            )
        if found.st_mode & _GROUP_AND_OTHERS:
            # The mode of a directory that was named by mistake, such as /tmp, must not change.
            if not (folder / NODE).exists() and any(folder.iterdir()):
                raise HostError(
                    f"The data directory {folder} is accessible to other users and contains other files.",
                    code=ErrorCode.HOST_NOT_READY,
                    hint=f"Set SANDLOT_DATA_DIR to an empty directory, or run `chmod 700 {folder}` if this directory is correct.",
                )
            folder.chmod(0o700)
    except OSError as error:
        raise HostError(
            f"The data directory {folder} cannot be used: {error.strerror or error}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Start the service as root, or set SANDLOT_DATA_DIR to a directory that you can write to.",
        ) from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a data directory.

    Raises:
        ConflictError: Another service holds the lock. ``fields.pid`` is its process id.
    """
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            raise ConflictError(
                f"Process {pid} already serves the data directory {folder}.",
                code=ErrorCode.CONFLICT,
                hint="Use the running service, stop it with `sandlot service stop`, or set SANDLOT_DATA_DIR to another directory.",
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
        lock = lock_folder(folder)  # `sandlot key` may open a new directory at the same time
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
            hint="Make the file readable and the data directory writable for the service.",
        ) from error
    if text == str(DATA_FORMAT):
        return
    if text is None or text.isdecimal():
        found = "no format number" if text is None else f"format {text}"
        raise HostError(
            f"The data directory {folder} has {found}; this version of Sandlot uses format {DATA_FORMAT}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Set SANDLOT_DATA_DIR to an empty directory, or start the version of Sandlot that wrote this data directory.",
        )
    raise HostError(
        f"{file} holds {text[:64]!r} instead of a format number.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Restore the file from a backup, or set SANDLOT_DATA_DIR to an empty directory.",
    )


def node(folder: Path) -> NodeId:
    """Return the node's id; create it in a new directory. The caller holds the lock.

    Raises:
        HostError: The file cannot be read or does not contain a node id.
    """
    file = folder / NODE
    try:
        text = file.read_text("ascii").strip()
    except FileNotFoundError:
        created = new_node_id()
        durable.write_file(file, f"{created}\n".encode())
        return created
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_node(file) from error
    if NODE_ID.fullmatch(text) is None:
        raise _bad_node(file)
    return NodeId(text)


def check_database(folder: Path, identity: str) -> None:
    """Check that the open database is the one that the directory belongs to. A new directory is bound to the open database.

    Args:
        folder: Data directory, whose lock the caller holds.
        identity: Unique id of the open database.

    Raises:
        HostError: The directory belongs to another database, or the file cannot be read or written.
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
            hint="Make the file readable and the data directory writable for the service.",
        ) from error
    if found != identity:
        raise HostError(
            f"The data directory {folder} belongs to another database.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Set SANDLOT_DATABASE_URL to the database of this directory, or restore sandlot.db from a backup. To use the open database "
            f"nevertheless, delete {file}: the service then removes uploaded files and live sandboxes that this database does not know.",
        )


def secret(folder: Path) -> bytes:
    """Return the secret of signed URLs, 32 random bytes; create it in a new directory. The caller holds the lock.

    Raises:
        HostError: The file cannot be read or has another length.
    """
    file = folder / SIGNING
    try:
        found = file.read_bytes()
    except FileNotFoundError:
        created = os.urandom(_SECRET_BYTES)
        durable.write_file(file, created)
        return created
    except OSError as error:
        raise _bad_secret(file) from error
    if len(found) != _SECRET_BYTES:
        raise _bad_secret(file)
    return found


def _bad_secret(file: Path) -> HostError:
    return HostError(
        f"{file} does not contain a secret of {_SECRET_BYTES} bytes.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Delete the file. The service creates a new secret and refuses URLs that were signed before.",
    )


def _bad_node(file: Path) -> HostError:
    return HostError(
        f"{file} does not contain a node id.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Restore the file from a backup. Without it, sandboxes of an earlier service are no longer found.",
    )
