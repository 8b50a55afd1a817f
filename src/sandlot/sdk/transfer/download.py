"""Copying from a sandbox to this machine. The sandbox's side of it is not trusted.

Laws:
- A name that comes from a sandbox is one path component, or it is refused: nothing is ever written outside of the folder that was asked for.
- Below that folder no link is followed: every name is walked from the open folder on, one part at a time. A link that is there under a file's
  name is replaced, never what it points to.
- A file appears under its name complete or not at all.
- No links, owners or special files are made on this machine, and nothing deeper than what every program can remove again.
- What this machine refuses is a SandlotError that names the file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, HostError, InternalError, InvalidRequestError, LimitError, from_code
from sandlot.model.specs import MAX_PATH_BYTES
from sandlot.protocol import tar

DEPTH_MOST = 200
"""Folders in each other that are made here: python's own shutil.rmtree fails beyond its recursion limit, some programs before that."""
PART_NAME_BYTES = 123
"""The longest name of what is not complete yet; a file system takes 255."""
_TOKEN_BYTES = 8
_IN_THE_WAY = frozenset({errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENOTEMPTY})
_NO_NAME = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def below(folder: str, name: str) -> str:
    """The path of a member of a folder's archive, to be shown."""
    return f"{folder.rstrip('/')}/{name}"


class ArchiveExtractor:
    """A tar archive of a sandbox on its way into a folder here. Feed it, then finish it; discard it in the end.

    Args:
        target: The folder; made where it is not there. Links that this path itself leads through are followed.

    Raises:
        SandlotError: It cannot be made.
    """

    __slots__ = ("_held", "_part", "_reader", "_root", "_target", "files", "path", "size_bytes")

    def __init__(self, target: Path) -> None:
        self._target = target
        self._reader = tar.Reader()
        self._part: PartialFile | None = None
        self._held: tuple[list[str], int] | None = None  # the folder of the last file
        self.path = ""
        self.files = 0
        self.size_bytes = 0
        self._root = -1
        with _told(str(target)):
            self._root = _opened(target)

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            InvalidRequestError: The sandbox names what would lie outside, is deeper than files are made here, or has a name that no file can have.
            ConflictError: Something else is in the way: a link, or a file where a folder is to be.
            SandlotError: This machine refuses it, or its disk is full.
            InternalError: It is no archive.
        """
        try:
            for event in self._reader.feed(data):
                self._take(event)
        except tar.TarError as error:
            raise InternalError(f"What the sandbox sent cannot be unpacked: {error.message}") from None

    def finish(self) -> None:
        """All of it came.

        Raises:
            SandlotError: It did not; where the sandbox said why, that.
        """
        self.explain()
        try:
            self._reader.close()
        except tar.TarError as error:
            raise InternalError(f"What the sandbox sent is not whole: {error.message}") from None

    def explain(self) -> None:
        """Raise what the sandbox said in the archive of why it breaks off, where it did."""
        said = self._reader.global_values
        if tar.ERROR_MESSAGE in said:
            raise from_code(said.get(tar.ERROR_CODE, ""), said[tar.ERROR_MESSAGE])

    def discard(self) -> None:
        """Remove what is half there, and let go of the folder."""
        if self._part is not None:
            self._part.discard()
            self._part = None
        self._let_go()
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _take(self, event: tar.Member | memoryview | tar.Finished) -> None:
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
        if len(names) > DEPTH_MOST or len(_encoded(str(target.absolute()))) >= MAX_PATH_BYTES - PART_NAME_BYTES:
            raise InvalidRequestError(
                f"{tar.shown(member.name)} in the sandbox lies deeper than files are made here.",
                hint="Pack it inside by a command and download the archive.",
                fields={"path": member.name[:200]},
            )
        if member.kind == tar.FOLDER:
            with _told(member.name):
                self._folder(names)
        elif member.kind == tar.FILE and names:
            with _told(member.name):
                self._part = PartialFile(os.dup(self._folder(names[:-1])), names[-1], member.name, executable=bool(member.mode & 0o111))

    def _folder(self, names: list[str]) -> int:
        """The folder of that path, open until the next one is asked for; made where there is none."""
        if self._held is None or self._held[0] != names:
            self._let_go()
            fd = os.dup(self._root)
            try:
                for name in names:
                    inner = _entered(name, fd)
                    os.close(fd)
                    fd = inner
            except BaseException:
                os.close(fd)
                raise
            self._held = (names, fd)
        return self._held[1]

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._held[1])
            self._held = None


class PartialFile:
    """A file that is being received: beside its place, under another name, until it is complete. Discard it in the end.

    Args:
        folder: The open folder that it is made in; closed by this.
        name: Its name there.
        shown: What errors call it.
        executable: Whether it may be executed.

    Raises:
        SandlotError: It cannot be made; the folder is closed then too.
    """

    __slots__ = ("_fd", "_folder", "_name", "_part", "_shown")

    def __init__(self, folder: int, name: str, shown: str, *, executable: bool) -> None:
        self._folder = folder
        self._name = name
        self._shown = shown
        self._part = ""
        self._fd = -1
        # Cut by bytes, of which a name may have 255; half a character is left out.
        token = secrets.token_hex(_TOKEN_BYTES)
        kept = _encoded(name)[: PART_NAME_BYTES - len(token) - len("...part")].decode("utf-8", "ignore")
        part = f".{kept}.{token}.part"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with _told(shown):
                self._fd = os.open(part, flags, 0o777 if executable else 0o666, dir_fd=folder)
        except BaseException:
            self.discard()
            raise
        self._part = part

    @classmethod
    def create(cls, target: Path, executable: bool) -> Self:  # noqa: FBT001 - called through a thread, by position
        """Begin to receive a file under a path that was asked for here; links in it are followed, but one at its end is replaced.

        Args:
            target: Where it will be; folders above it are made.
            executable: Whether it may be executed.

        Raises:
            SandlotError: It cannot be made there.
        """
        if target.name in {"", ".."}:
            raise InvalidRequestError(f"{target} is a folder.", hint="Name the file.", fields={"path": str(target)})
        with _told(str(target)):
            folder = _opened(target.parent)
        return cls(folder, target.name, str(target), executable=executable)

    def write(self, piece: bytes | memoryview) -> None:
        """Add the next piece.

        Raises:
            SandlotError: It cannot be written; the disk is full, most of all.
        """
        view = memoryview(piece)
        with _told(self._shown):
            while view:
                view = view[os.write(self._fd, view) :]

    def finish(self) -> None:
        """Put it in its place.

        Raises:
            ConflictError: A folder is there.
            SandlotError: It cannot be put there.
        """
        with _told(self._shown):
            fd, self._fd = self._fd, -1
            os.close(fd)  # a network's file system tells of a full disk here
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self._part = ""
        self.discard()

    def discard(self) -> None:
        """Remove what is left of it; nothing, once it is finished."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        try:
            if self._part:
                os.unlink(self._part, dir_fd=self._folder)
        except OSError:
            pass  # whoever removed the folder, or took the right to it, did that on this machine
        finally:
            self._part = ""
            if self._folder >= 0:
                os.close(self._folder)
                self._folder = -1


def _names(name: str) -> list[str]:
    """A member's path as names.

    Raises:
        InvalidRequestError: It would lie outside of the folder.
    """
    try:
        return tar.parts(name)
    except tar.TarError as error:
        raise InvalidRequestError(
            f"The sandbox names a file that would lie outside of the folder. {error.message}", fields={"path": name[:200]}
        ) from None


def _opened(path: Path) -> int:
    """A folder that was asked for here, open; made, and those above it, where there is none."""
    path.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _entered(name: str, folder: int) -> int:
    """A folder in an open one, open; made where there is none. No link is followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        os.mkdir(name, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def _told(name: str) -> Iterator[None]:
    """What this machine refuses, as an error of ours that names the file."""
    fields = {"path": name[:200]}
    try:
        yield
    except UnicodeError as error:
        raise InvalidRequestError(
            f"{tar.shown(name)} cannot be written in this machine's encoding.", code=ErrorCode.PATH_INVALID, fields=fields
        ) from error
    except OSError as error:
        why = os.strerror(error.errno or errno.EIO)
        if error.errno in _IN_THE_WAY:
            raise ConflictError(
                f"Something else is in the way of {tar.shown(name)} on this machine: a link, a folder, or a file where a folder is to be ({why}).",
                code=ErrorCode.PATH_EXISTS,
                hint="Copy it to another place, or remove what is there.",
                fields=fields,
            ) from error
        if error.errno in _NO_NAME:
            raise InvalidRequestError(
                f"{tar.shown(name)} is a name that no file can have on this machine ({why}).", code=ErrorCode.PATH_INVALID, fields=fields
            ) from error
        if error.errno in _FULL:
            raise LimitError(f"{tar.shown(name)} does not fit on this machine ({why}).", code=ErrorCode.DISK_FULL, fields=fields) from error
        if error.errno in _REFUSED:
            raise ForbiddenError(
                f"{tar.shown(name)} may not be written on this machine ({why}).", code=ErrorCode.PERMISSION_DENIED, fields=fields
            ) from error
        raise HostError(f"{tar.shown(name)} cannot be written on this machine ({why}).", code=ErrorCode.HOST_NOT_READY, fields=fields) from error
