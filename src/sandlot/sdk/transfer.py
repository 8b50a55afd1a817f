"""Copying between this machine and a sandbox: what is copied to where. The sandbox's side of it is not trusted.

Laws:
- A name that comes from a sandbox is one path component, or it is refused: nothing is ever written outside of the folder that was asked for.
- A file appears under its name complete or not at all.
- No links, owners or special files are made on this machine.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Self

from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.specs import MAX_PATH_BYTES


@dataclass(frozen=True, slots=True)
class UploadFile:
    """One file to copy."""

    source: Path
    guest: str
    executable: bool


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Folders to make, from the top down, and files to copy."""

    folders: tuple[str, ...]
    files: tuple[UploadFile, ...]


def plan_upload(local: Path, guest: str) -> UploadPlan:
    """What copying a file or folder into a sandbox takes.

    Args:
        local: The file or folder here; a link at its end is followed.
        guest: Its path in the sandbox.

    Raises:
        NotFoundError: It does not exist.
        InvalidRequestError: It is neither file nor folder.
    """
    guest = guest.rstrip("/") or "/"
    try:
        status = local.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"There is no file {local} on this machine.", code=ErrorCode.PATH_NOT_FOUND, fields={"path": str(local)}) from error
    if stat.S_ISREG(status.st_mode):
        return UploadPlan((), (_upload_file(local, guest, status),))
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidRequestError(f"{local} is neither a file nor a folder.", fields={"path": str(local)})
    folders, files = [guest], []
    for folder, names, leaves in os.walk(local):
        names.sort()
        # os.walk names links to folders here, but does not follow them.
        names[:] = [name for name in names if not Path(folder, name).is_symlink()]
        inside = PurePosixPath(guest, os.path.relpath(folder, local))
        folders += [str(inside / name) for name in names]
        for name in sorted(leaves):
            source = Path(folder, name)
            try:
                status = source.stat()
            except OSError:
                continue  # a dangling link, or gone meanwhile
            if stat.S_ISREG(status.st_mode):
                files.append(_upload_file(source, str(inside / name), status))
    return UploadPlan(tuple(folders), tuple(files))


def child_of(folder: str, name: str) -> str:
    """The path of something in a folder of the sandbox.

    Raises:
        InvalidRequestError: The name is no single path component, or the path has become longer than Linux has it.
    """
    path = f"{folder.rstrip('/')}/{name}"
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise InvalidRequestError(f"The sandbox names a file {name!r} in {folder}, which would lie outside of the folder.", fields={"path": path})
    if len(path.encode("utf-8", "surrogateescape")) > MAX_PATH_BYTES:
        raise InvalidRequestError(f"A path below {folder[:100]} is longer than {MAX_PATH_BYTES} bytes.", fields={"path": path[:200]})
    return path


def make_folder(path: Path) -> None:
    """Make a folder here, and those above it."""
    path.mkdir(parents=True, exist_ok=True)


class PartFile:
    """A file that is being received: beside its place, under another name, until it is complete."""

    __slots__ = ("_file", "_path", "_target")

    def __init__(self, target: Path, path: Path, file: IO[bytes]) -> None:
        self._target = target
        self._path = path
        self._file = file

    @classmethod
    def create(cls, target: Path, executable: bool) -> Self:  # noqa: FBT001 - called through a thread, by position
        """Begin to receive a file.

        Args:
            target: Where it will be.
            executable: Whether it may be executed.
        """
        make_folder(target.parent)
        path = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}.part")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777 if executable else 0o666)
        return cls(target, path, os.fdopen(descriptor, "wb"))

    def write(self, piece: bytes) -> None:
        """Add the next piece."""
        self._file.write(piece)

    def finish(self) -> None:
        """Put it in its place."""
        self._file.close()
        self._path.replace(self._target)

    def discard(self) -> None:
        """Remove what is left of it; nothing, once it is finished."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _upload_file(source: Path, guest: str, status: os.stat_result) -> UploadFile:
    return UploadFile(source, guest, bool(status.st_mode & 0o111))
