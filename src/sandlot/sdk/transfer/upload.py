"""Uploads: plan which local files and directories are copied into a sandbox, and pack them.

Only files and directories are copied. A symbolic link to a file is copied as that file; links to directories are skipped. Small files travel together
in tar archives of a few megabytes, large files alone.
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
"""Size from which a file travels alone."""
PART_BYTES = 16 * MIB
PART_ENTRIES = 10_000
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """Progress of an upload or download.

    Args:
        path: Path of the current file in the sandbox.
        done_bytes: Bytes copied so far.
        total_bytes: Size of all files; None if it is not known.
        done_files: Files copied so far.
        total_files: Number of all files; None if it is not known.
    """

    path: str
    done_bytes: int
    total_bytes: int | None
    done_files: int
    total_files: int | None


@dataclass(frozen=True, slots=True)
class UploadFile:
    """One file of an upload."""

    source: Path
    guest: str
    executable: bool
    size_bytes: int = field(default=0, compare=False)
    mtime_s: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Directories of an upload, parents first, and its files."""

    directories: tuple[str, ...]
    files: tuple[UploadFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def root(self) -> str:
        """Path in the sandbox of the uploaded directory or file."""
        return self.directories[0] if self.directories else self.files[0].guest

    def parts(self) -> Iterator[UploadPlan]:
        """Yield the parts of the upload: archives, in which directories come before their files, then single large files."""
        directories, files, size = list(self.directories), list[UploadFile](), 0
        alone = []
        for file in self.files:
            if file.size_bytes >= ALONE_BYTES:
                alone.append(file)
                continue
            if size + file.size_bytes > PART_BYTES or len(directories) + len(files) >= PART_ENTRIES:
                yield UploadPlan(tuple(directories), tuple(files))
                directories, files, size = [], [], 0
            files.append(file)
            size += file.size_bytes
        if directories or files:
            yield UploadPlan(tuple(directories), tuple(files))
        for file in alone:
            yield UploadPlan((), (file,))


def plan_upload(local: Path, guest: str) -> UploadPlan:
    """Return the plan for copying a local file or directory.

    Args:
        local: File or directory; a symbolic link is followed.
        guest: Path in the sandbox.

    Raises:
        NotFoundError: The path does not exist.
        InvalidRequestError: The path is neither a file nor a directory.
    """
    guest = guest.rstrip("/") or "/"
    try:
        status = local.stat()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"{local} does not exist on this machine.", code=ErrorCode.PATH_NOT_FOUND, fields={"path": str(local)}) from error
    if stat.S_ISREG(status.st_mode):
        return UploadPlan((), (_upload_file(local, guest, status),))
    if not stat.S_ISDIR(status.st_mode):
        raise InvalidRequestError(f"{local} is neither a file nor a directory.", fields={"path": str(local)})
    directories, files = [guest], []
    for directory, names, leaves in os.walk(local):
        names.sort()
        # os.walk lists links to directories here, but does not follow them.
        names[:] = [name for name in names if not Path(directory, name).is_symlink()]
        inside = PurePosixPath(guest, os.path.relpath(directory, local))
        directories += [str(inside / name) for name in names]
        for name in sorted(leaves):
            source = Path(directory, name)
            try:
                status = source.stat()
            except OSError:
                continue  # a dangling link, or removed meanwhile
            if stat.S_ISREG(status.st_mode):
                files.append(_upload_file(source, str(inside / name), status))
    return UploadPlan(tuple(directories), tuple(files))


class UploadProgress:
    """Progress of an upload whose parts may be sent more than once."""

    __slots__ = ("_before", "_bytes", "_files", "_last", "_plan", "_size")

    def __init__(self, plan: UploadPlan) -> None:
        self._plan = plan
        self._size = plan.size_bytes
        self._last = plan.root
        self._bytes = self._files = 0
        self._before = (0, 0)

    @property
    def progress(self) -> TransferProgress:
        """The current progress."""
        return TransferProgress(self._last, self._bytes, max(self._bytes, self._size), self._files, len(self._plan.files))

    def begin(self) -> UploadProgress:
        """Remember the progress at the beginning of a part."""
        self._before = (self._bytes, self._files)
        return self

    def again(self) -> None:
        """Return to the beginning of the part, which is sent again."""
        self._bytes, self._files = self._before

    def add(self, file: UploadFile, size: int) -> None:
        """Count bytes of a file that were sent."""
        self._last = file.guest
        self._bytes += size

    def finish(self) -> None:
        """Count a file that was sent."""
        self._files += 1


def packed(part: UploadPlan, root: str, progress: UploadProgress) -> Iterator[bytes]:
    """Yield a part of a plan as a tar archive, in pieces of at least 256 KiB.

    Args:
        part: Part of the plan.
        root: Directory in the sandbox in which the archive is unpacked.
        progress: Progress, updated with each piece.

    Raises:
        ConflictError: A file became shorter during the upload.
        OSError: A file cannot be read.
    """
    waiting: list[bytes] = []
    size = 0
    for piece in _packed(part, root, progress):
        waiting.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _packed(part: UploadPlan, root: str, progress: UploadProgress) -> Iterator[bytes]:
    base = PurePosixPath(root)
    for directory in part.directories:
        if directory != root:
            yield tar.header(tar.Member(str(PurePosixPath(directory).relative_to(base)), tar.FOLDER, mode=0o755))
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
                    raise ConflictError(f"{file.source} became shorter during the upload.", code=ErrorCode.CONFLICT, hint="Upload the file again.")
                left -= len(piece)
                progress.add(file, len(piece))
                yield piece
            progress.finish()
            yield rest
    yield tar.END


def _upload_file(source: Path, guest: str, status: os.stat_result) -> UploadFile:
    return UploadFile(source, guest, bool(status.st_mode & 0o111), status.st_size, int(status.st_mtime))
