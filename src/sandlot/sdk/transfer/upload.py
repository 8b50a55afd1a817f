"""Copying from this machine into a sandbox: what of a file or folder is sent, in which parts.

Laws:
- Files and folders only: a link to a file goes as that file, a link to a folder not at all.
- A tree travels as tar archives of a few megabytes each, made piece by piece; a large file travels by itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.specs import MIB
from sandlot.protocol import tar

ALONE_BYTES = 8 * MIB
"""A file of that size travels by itself."""
PART_BYTES = 16 * MIB
PART_ENTRIES = 10_000
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a copy is.

    Args:
        path: What is being copied: its path in the sandbox.
        done_bytes: Content that was copied.
        total_bytes: Of all of it; None where nobody knows.
        done_files: Files that were copied.
        total_files: Of all of them; None where nobody knows.
    """

    path: str
    done_bytes: int
    total_bytes: int | None
    done_files: int
    total_files: int | None


@dataclass(frozen=True, slots=True)
class UploadFile:
    """One file to copy."""

    source: Path
    guest: str
    executable: bool
    size_bytes: int = field(default=0, compare=False)
    mtime_s: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Folders to make, from the top down, and files to copy."""

    folders: tuple[str, ...]
    files: tuple[UploadFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def root(self) -> str:
        """The path in the sandbox that all of it is below, or that one file is at."""
        return self.folders[0] if self.folders else self.files[0].guest

    def parts(self) -> Iterator[UploadPlan]:
        """The same in parts that each travel as one archive, or as one large file without a folder; folders come before what is in them."""
        folders, files, size = list(self.folders), list[UploadFile](), 0
        alone = []
        for file in self.files:
            if file.size_bytes >= ALONE_BYTES:
                alone.append(file)
                continue
            if size + file.size_bytes > PART_BYTES or len(folders) + len(files) >= PART_ENTRIES:
                yield UploadPlan(tuple(folders), tuple(files))
                folders, files, size = [], [], 0
            files.append(file)
            size += file.size_bytes
        if folders or files:
            yield UploadPlan(tuple(folders), tuple(files))
        for file in alone:
            yield UploadPlan((), (file,))


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


class UploadProgress:
    """How far an upload is.

    Args:
        plan: All of it.
    """

    __slots__ = ("_before", "_bytes", "_files", "_last", "_plan", "_size")

    def __init__(self, plan: UploadPlan) -> None:
        self._plan = plan
        self._size = plan.size_bytes
        self._last = plan.root
        self._bytes = self._files = 0
        self._before = (0, 0)

    @property
    def progress(self) -> TransferProgress:
        """As it is now."""
        return TransferProgress(self._last, self._bytes, max(self._bytes, self._size), self._files, len(self._plan.files))

    def begin(self) -> UploadProgress:
        """A part is sent, which may have to be sent again."""
        self._before = (self._bytes, self._files)
        return self

    def again(self) -> None:
        """It has to be."""
        self._bytes, self._files = self._before

    def add(self, file: UploadFile, size: int) -> None:
        """So many bytes of a file were sent."""
        self._last = file.guest
        self._bytes += size

    def finish(self) -> None:
        """All of it was."""
        self._files += 1


def packed(part: UploadPlan, root: str, tally: UploadProgress) -> Iterator[bytes]:
    """A part of a plan as a tar archive, in pieces that are worth sending. Arguments and errors are those of :func:`_packed`."""
    waiting: list[bytes] = []
    size = 0
    for piece in _packed(part, root, tally):
        waiting.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _packed(part: UploadPlan, root: str, tally: UploadProgress) -> Iterator[bytes]:
    """A part of a plan as a tar archive, piece by piece.

    Args:
        part: The part.
        root: The folder in the sandbox that it is unpacked in.
        tally: Is told what has just been packed.

    Raises:
        ConflictError: A file has become shorter meanwhile.
        OSError: One cannot be read.
    """
    base = PurePosixPath(root)
    for folder in part.folders:
        if folder != root:
            yield tar.header(tar.Member(str(PurePosixPath(folder).relative_to(base)), tar.FOLDER, mode=0o755))
    for file in part.files:
        with file.source.open("rb") as content:
            left = os.fstat(content.fileno()).st_size
            mode = 0o755 if file.executable else 0o644
            yield tar.header(
                tar.Member(str(PurePosixPath(file.guest).relative_to(base)), tar.FILE, size=left, mode=mode, mtime_s=max(0, file.mtime_s))
            )
            rest = tar.padding(left)
            while left:
                piece = content.read(min(left, PIECE_BYTES))
                if not piece:
                    raise ConflictError(f"{file.source} became shorter while it was copied.", code=ErrorCode.CONFLICT, hint="Copy it again.")
                left -= len(piece)
                tally.add(file, len(piece))
                yield piece
            tally.finish()
            yield rest
    yield tar.END


def _upload_file(source: Path, guest: str, status: os.stat_result) -> UploadFile:
    return UploadFile(source, guest, bool(status.st_mode & 0o111), status.st_size, int(status.st_mtime))
