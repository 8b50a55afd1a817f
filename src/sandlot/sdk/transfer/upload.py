"""Uploads: plan which local files and directories are copied into a sandbox, and pack them.

Files, directories and symbolic links are copied. A link that leads out of the directory is skipped, so the copy of a link never means a file that
was not copied. Small files travel together in tar archives of a few megabytes, large files alone.
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
    """Directories of an upload, parents first, its files, and its symbolic links with their targets.

    ``skipped`` has a sentence about each entry that is not copied.
    """

    directories: tuple[str, ...]
    files: tuple[UploadFile, ...]
    links: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def root(self) -> str:
        """Path in the sandbox of the uploaded directory or file."""
        return self.directories[0] if self.directories else self.files[0].guest

    def parts(self, alone_bytes: int = ALONE_BYTES) -> Iterator[UploadPlan]:
        """Yield the parts of the upload: archives, in which directories come before their files and links, then single files.

        Args:
            alone_bytes: Size from which a file travels alone.
        """
        directories, files, links, size = list(self.directories), list[UploadFile](), self.links, 0
        alone = []
        for file in self.files:
            if file.size_bytes >= alone_bytes:
                alone.append(file)
                continue
            if size + file.size_bytes > PART_BYTES or len(directories) + len(files) + len(links) >= PART_ENTRIES:
                yield UploadPlan(tuple(directories), tuple(files), links)
                directories, files, links, size = [], [], (), 0
            files.append(file)
            size += file.size_bytes
        if directories or files:
            yield UploadPlan(tuple(directories), tuple(files), links)
        for file in alone:
            yield UploadPlan((), (file,))


def plan_upload(local: Path, guest: str) -> UploadPlan:
    """Return the plan for copying a local file or directory.

    Args:
        local: File or directory. A symbolic link in the last part of this path is followed.
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
    return _plan_directory(local.resolve(), guest)


def _plan_directory(root: Path, guest: str) -> UploadPlan:
    directories, files = [guest], []
    links: list[tuple[str, str]] = []
    skipped: list[str] = []
    for directory, names, leaves in os.walk(root):
        names.sort()
        inside = PurePosixPath(os.path.relpath(directory, root))
        for name in sorted((*names, *leaves)):
            source, copy = Path(directory, name), str(PurePosixPath(guest, inside, name))
            try:
                status = source.lstat()
                target = source.readlink() if stat.S_ISLNK(status.st_mode) else None
            except OSError:
                continue  # removed meanwhile
            if target is not None:
                if inner := _inner_target(source, target, root):
                    links.append((copy, inner))
                else:
                    skipped.append(f"{tar.shown(str(source))} was not copied: the link leads out of the directory.")
            elif stat.S_ISREG(status.st_mode):
                files.append(_upload_file(source, copy, status))
            elif stat.S_ISDIR(status.st_mode):
                directories.append(copy)
            else:
                skipped.append(f"{tar.shown(str(source))} was not copied: it is neither a file, a directory nor a link.")
    return UploadPlan(tuple(directories), tuple(files), tuple(links), tuple(skipped))


def _inner_target(link: Path, target: Path, root: Path) -> str | None:
    """Return the target of the copy of a link; None if the link, or a link that it leads to, leads out of the directory."""
    end = Path(os.path.realpath(link))  # unlike Path.resolve, it accepts a loop of links
    if not end.is_relative_to(root):
        return None
    depth = len(link.relative_to(root).parts) - 1
    return tar.inner_target(str(target), depth, str(root)) or os.path.relpath(end, link.parent)


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
    for link, target in part.links:
        yield tar.header(tar.Member(str(PurePosixPath(link).relative_to(base)), tar.SYMLINK, mode=0o777, target=target))
    yield tar.END


def _upload_file(source: Path, guest: str, status: os.stat_result) -> UploadFile:
    return UploadFile(source, guest, bool(status.st_mode & 0o111), status.st_size, int(status.st_mtime))
