"""Downloads: write files of a sandbox to this machine. The sandbox is not trusted.

Invariants:
- Nothing is written outside the target directory: every name from the sandbox is checked to be one path component.
- No link below the target directory is followed: names are opened one by one, each relative to its open parent. A link in place of a file is
  replaced, and its target stays as it is.
- A file appears under its name complete or not at all.
- A symbolic link is created only if its target stays inside the target directory, whatever other links the directory has. Other links are skipped.
- No owners, hard links or special files are created, and no directories deeper than every program can remove.
- An error of this machine is a SandlotError that names the file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    ForbiddenError,
    HostError,
    InternalError,
    InvalidRequestError,
    LimitError,
    UnsupportedError,
    from_code,
)
from sandlot.model.specs import MAX_PATH_BYTES
from sandlot.protocol import tar

MAX_DEPTH = 200
"""Largest depth of directories: shutil.rmtree of Python fails beyond its recursion limit, and some programs earlier."""
PART_NAME_BYTES = 123
"""Longest name of a partial file; file systems allow 255 bytes."""
_TOKEN_BYTES = 8
_OCCUPIED = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY})
_BAD_NAME = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def below(folder: str, name: str) -> str:
    """Return the path in the sandbox of a member of a directory's archive."""
    return f"{folder.rstrip('/')}/{name}"


class ArchiveExtractor:
    """Extractor of a tar archive from a sandbox. Feed the archive, then call ``finish``; call ``discard`` in every case.

    Args:
        target: Directory to extract to, created if needed. Links in this path itself are followed.
        source: Path in the sandbox of the directory that the archive contains. Absolute links below this path become relative links.

    Raises:
        SandlotError: The directory cannot be created.
    """

    __slots__ = ("_open", "_part", "_reader", "_root", "_skipped", "_source", "_target", "files", "path", "size_bytes")

    def __init__(self, target: Path, source: str) -> None:
        self._target = target
        self._source = source
        self._skipped: list[str] = []
        self._reader = tar.Reader()
        self._part: PartialFile | None = None
        self._open: tuple[list[str], int] | None = None  # directory of the last file
        self.path = ""
        self.files = 0
        self.size_bytes = 0
        self._root = -1
        with _os_errors(str(target)):
            self._root = _open_directory(target)

    def feed(self, data: bytes) -> None:
        """Extract the next bytes.

        Raises:
            InvalidRequestError: A path leads outside the target directory, is too deep, or is not a valid name on this machine.
            ConflictError: A link, or a file in place of a directory, is in the way.
            SandlotError: A file cannot be written, for example because the disk is full.
            InternalError: The bytes are not an archive.
        """
        try:
            for event in self._reader.feed(data):
                self._handle(event)
        except tar.TarError as error:
            raise InternalError(f"The archive from the sandbox is invalid. {error.message}") from None

    def take_skipped(self) -> list[str]:
        """Return a sentence about each entry that was skipped since the last call."""
        skipped, self._skipped = self._skipped, []
        return skipped

    def finish(self) -> None:
        """Check that the archive is complete.

        Raises:
            SandlotError: The archive is incomplete; the error of the sandbox, if the archive contains one.
        """
        self.explain()
        try:
            self._reader.close()
        except tar.TarError as error:
            raise InternalError(f"The download from the sandbox ended early. {error.message}") from None

    def explain(self) -> None:
        """Raise the error with which the sandbox ended the archive, if there is one."""
        said = self._reader.global_values
        if tar.ERROR_MESSAGE in said:
            raise from_code(said.get(tar.ERROR_CODE, ""), said[tar.ERROR_MESSAGE])

    def discard(self) -> None:
        """Remove a partial file and close the directories."""
        if self._part is not None:
            self._part.discard()
            self._part = None
        self._close_directory()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _handle(self, event: tar.Member | memoryview | tar.Finished) -> None:
        if isinstance(event, memoryview):
            if self._part is not None:
                self._part.write(event)
                self.size_bytes += len(event)
        elif isinstance(event, tar.Finished):
            if self._part is not None:
                self._part.finish()
                self._part = None
                self.files += 1
        else:
            self._begin(event)

    def _begin(self, member: tar.Member) -> None:
        self.path = member.name
        names = _names(member.name)
        target = self._target.joinpath(*names)
        if len(names) > MAX_DEPTH or len(_encoded(str(target.absolute()))) >= MAX_PATH_BYTES - PART_NAME_BYTES:
            raise InvalidRequestError(
                f"The path {tar.shown(member.name)} is too long or too deep for this machine.",
                hint="Pack the directory with a command in the sandbox, and download the archive.",
                fields={"path": member.name[:200]},
            )
        if member.kind == tar.FOLDER:
            with _os_errors(member.name):
                self._directory(names)
        elif member.kind == tar.FILE and names:
            with _os_errors(member.name):
                self._part = PartialFile(os.dup(self._directory(names[:-1])), names[-1], member.name, executable=bool(member.mode & 0o111))
        elif member.kind == tar.SYMLINK and names:
            self._make_link(member, names)

    def _make_link(self, member: tar.Member, names: list[str]) -> None:
        link_target = tar.inner_target(member.target, len(names) - 1, self._source)
        if link_target is None:
            shown = f"{tar.shown(below(self._source, member.name))} was not copied: the link leads out of the directory"
            self._skipped.append(f"{shown}, to {tar.shown(member.target)}.")
            return
        with _os_errors(member.name):
            folder = self._directory(names[:-1])
            temporary = f".{secrets.token_hex(_TOKEN_BYTES)}.part"
            os.symlink(link_target, temporary, dir_fd=folder)
            try:
                os.rename(temporary, names[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(temporary, dir_fd=folder)
                raise

    def _directory(self, names: list[str]) -> int:
        """Return the open directory of a path, created if needed. It stays open until the next call."""
        if self._open is None or self._open[0] != names:
            self._close_directory()
            fd = os.dup(self._root)
            try:
                for name in names:
                    inner = _enter_directory(name, fd)
                    os.close(fd)
                    fd = inner
            except BaseException:
                os.close(fd)
                raise
            self._open = (names, fd)
        return self._open[1]

    def _close_directory(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


class PartialFile:
    """A file during its download: written under a temporary name, and renamed when it is complete. Call ``discard`` in every case.

    Args:
        folder: Open directory of the file; ownership passes to this object, also if it cannot be created.
        name: Name in the directory.
        shown: Name in errors.
        executable: True to make the file executable.

    Raises:
        SandlotError: The file cannot be created.
    """

    __slots__ = ("_fd", "_folder", "_name", "_part", "_shown")

    def __init__(self, folder: int, name: str, shown: str, *, executable: bool) -> None:
        self._folder = folder
        self._name = name
        self._shown = shown
        self._part = ""
        self._fd = -1
        # File names are limited in bytes: the name is cut to fit, and a character that the cut would split is left out.
        token = secrets.token_hex(_TOKEN_BYTES)
        kept = _encoded(name)[: PART_NAME_BYTES - len(token) - len("...part")].decode("utf-8", "ignore")
        part = f".{kept}.{token}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with _os_errors(shown):
                self._fd = os.open(part, flags, 0o777 if executable else 0o666, dir_fd=folder)
        except BaseException:
            self.discard()
            raise
        self._part = part

    @classmethod
    def create(cls, target: Path, executable: bool) -> Self:  # noqa: FBT001 - called through a thread, by position
        """Create the partial file of a path on this machine. Links in the path are followed; a link in place of the file is replaced.

        Args:
            target: Path of the file; directories above are created.
            executable: True to make the file executable.

        Raises:
            SandlotError: The file cannot be created.
        """
        if target.name in {"", ".."}:
            raise InvalidRequestError(
                f"The path {target} does not end with a file name.",
                hint="Pass the path of the file, not of its directory.",
                fields={"path": str(target)},
            )
        with _os_errors(str(target)):
            folder = _open_directory(target.parent)
        return cls(folder, target.name, str(target), executable=executable)

    def write(self, piece: bytes | memoryview) -> None:
        """Write the next piece.

        Raises:
            SandlotError: The piece cannot be written, for example because the disk is full.
        """
        view = memoryview(piece)
        with _os_errors(self._shown):
            while view:
                view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        """Give the complete file its name.

        Raises:
            ConflictError: A directory has this name.
            SandlotError: The file cannot be renamed.
        """
        with _os_errors(self._shown):
            fd, self._fd = self._fd, -1
            os.close(fd)  # a network file system reports a full disk here
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._part = ""
        self.discard()

    def discard(self) -> None:
        """Remove the partial file; nothing happens after ``finish``."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            if self._part:
                os.unlink(self._part, dir_fd=self._folder)
        except OSError:
            pass  # somebody on this machine removed the directory or its permissions
        finally:
            self._part = ""
            if self._folder >= 0:
                os.close(self._folder)
                self._folder = -1


def _names(name: str) -> list[str]:
    """Return the names in a member's path.

    Raises:
        InvalidRequestError: The path leads outside the directory.
    """
    try:
        return tar.parts(name)
    except tar.TarError as error:
        raise InvalidRequestError(
            f"The archive from the sandbox has a path outside the downloaded directory. {error.message}", fields={"path": name[:200]}
        ) from None


def _open_directory(path: Path) -> int:
    """Open a directory of this machine; create it and its parents if needed.

    Raises:
        UnsupportedError: This machine runs Windows.
    """
    if os.open not in os.supports_dir_fd:
        raise UnsupportedError("Downloads to a path need Linux or macOS.", hint="Read files with `files.read`.")
    path.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _enter_directory(name: str, folder: int) -> int:
    """Open a directory in an open directory without following links; create it if needed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def _os_errors(name: str) -> Iterator[None]:
    """Convert errors of the operating system to errors that name the file."""
    fields = {"path": name[:200]}
    try:
        yield
    except UnicodeError as error:
        raise InvalidRequestError(
            f"The name {tar.shown(name)} cannot be encoded on this machine.", code=ErrorCode.PATH_INVALID, fields=fields
        ) from error
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        if error.errno in _OCCUPIED:
            raise ConflictError(
                f"Cannot write {tar.shown(name)} on this machine: a link, directory or file is in the way ({why}).",
                code=ErrorCode.PATH_EXISTS,
                hint="Choose another target, or remove the existing file.",
                fields=fields,
            ) from error
        if error.errno in _BAD_NAME:
            raise InvalidRequestError(
                f"{tar.shown(name)} is not a valid file name on this machine ({why}).", code=ErrorCode.PATH_INVALID, fields=fields
            ) from error
        if error.errno in _FULL:
            raise LimitError(
                f"Cannot write {tar.shown(name)}: the disk of this machine is full ({why}).", code=ErrorCode.DISK_FULL, fields=fields
            ) from error
        if error.errno in _REFUSED:
            raise ForbiddenError(
                f"Cannot write {tar.shown(name)} on this machine ({why}).", code=ErrorCode.PERMISSION_DENIED, fields=fields
            ) from error
        raise HostError(f"Cannot write {tar.shown(name)} on this machine ({why}).", code=ErrorCode.HOST_NOT_READY, fields=fields) from error
