"""Unpacks a tar archive, plain or compressed by gzip, that comes as input, into one folder.

Laws:
- Nothing is written outside of the folder: every name is walked from the open folder on, one part at a time, without following a link.
- A file appears under its name complete or not at all; one that is there already is replaced, and so is a link, never what it points to.
- Whatever is refused is named. What was unpacked before it stays.
- The user that runs this owns what comes of it; set-uid bits do not stay.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib

from sandlot.guest.fs.paths import open_folder
from sandlot.guest.helpers.helper import REQUESTS, Refused, failed, serve
from sandlot.protocol import tar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

READ_BYTES = 256 * 1024
INFLATED_BYTES = 256 * 1024
"""At once: what a bomb becomes is written, and the disk's limit stops it."""
HELD_FOLDERS = 64
"""Levels whose folders stay open for what follows; deeper ones are opened each time."""
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GZIP = b"\x1f\x8b"
MAGIC_BYTES = 6
_OTHERS = ((b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"))
_RIGHTS = 0o777
_OWN = 0o700


class Inflater:
    """Plain bytes out of what may be compressed by gzip (RFC 1952), one member after the other."""

    __slots__ = ("_begun", "_first", "_inflate", "_padded")

    def __init__(self) -> None:
        self._first = b""
        self._begun = False
        self._padded = False
        self._inflate: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes.

        Raises:
            TarError: They cannot be decompressed.
        """
        if not self._begun:
            data = self._first = self._first + data
            if len(data) < MAGIC_BYTES:
                return
            self._begin(data)
        if self._inflate is None:
            yield data
            return
        data, self._first = self._first + data, b""
        while data:
            if self._inflate.eof:
                if data == _GZIP[:1]:  # a read may end between the two
                    self._first = data
                    return
                if self._padded or not data.startswith(_GZIP):  # what follows the end is padding
                    self._padded = True
                    return
                self._inflate = zlib.decompressobj(31)
            try:
                piece = self._inflate.decompress(data, INFLATED_BYTES)
            except zlib.error as error:
                raise tar.TarError(f"The archive's compressed data is broken ({error}).") from None
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            yield piece

    def _begin(self, data: bytes) -> None:
        self._begun, self._first = True, b""
        for magic, name in _OTHERS:
            if data.startswith(magic):
                raise tar.TarError(f"The archive is compressed by {name}; it may be plain or compressed by gzip.")
        if data.startswith(_GZIP):
            self._inflate = zlib.decompressobj(31)


class Unpacking:
    """One archive on its way into a folder.

    Args:
        root: The open folder.
        path: How it is called, for messages.
        most: Entries that it may have.
    """

    __slots__ = (
        "_at",
        "_entries",
        "_held",
        "_most",
        "_mtime_s",
        "_names",
        "_path",
        "_rights",
        "_root",
        "_temporary",
        "_writing",
        "bytes",
        "files",
        "folders",
        "links",
    )

    def __init__(self, root: int, path: str, most: int) -> None:
        self._root = root
        self._most = most
        self._path = path.rstrip("/")
        self._held: list[tuple[str, int]] = []
        self._rights: list[tuple[list[str], int]] = []
        self._names: list[str] = []
        self._at = -1
        self._writing = -1
        self._temporary = ""
        self._mtime_s = 0
        self._entries = 0
        self.files = self.folders = self.links = self.bytes = 0

    def take(self, event: tar.Member | memoryview | tar.Finished) -> None:
        """The next of what a reader gives.

        Raises:
            TarError: It leads out of the folder.
            Refused: It cannot be written.
        """
        if isinstance(event, tar.Member):
            self._begin(event)
            return
        try:
            if isinstance(event, memoryview):
                self.bytes += len(event)
                while event:
                    event = event[os.write(self._writing, event) :]
            else:
                self._finish()
        except OSError as error:
            raise failed(error, self._shown()) from None

    def settle(self) -> None:
        """All came: give folders the rights that would have been in the way."""
        for names, mode in reversed(self._rights):
            fd = self._folder(names)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Leave nothing that is half written."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        if self._temporary:
            try:
                os.unlink(self._temporary, dir_fd=self._at)
            except OSError:
                return  # somebody else took it, or its folder

    def _begin(self, member: tar.Member) -> None:
        self._entries += 1
        if self._entries > self._most:
            raise Refused(
                "too_large", f"The archive has more than {self._most} entries; {tar.shown(member.name)} is one too many.", "Send it in several parts."
            )
        self._names = tar.parts(member.name)
        if not self._names:
            if member.kind != tar.FOLDER:
                raise tar.TarError(f"The archive's entry {tar.shown(member.name)} would replace the folder itself.", member.name)
            return
        try:
            if member.kind == tar.FOLDER:
                self._make_folder(member)
                return
            self._at = self._folder(self._names[:-1])
            if member.kind == tar.FILE:
                self._make_file(member)
            else:
                self._make_link(member)
        except OSError as error:
            raise self._failed(error, member) from None

    def _make_folder(self, member: tar.Member) -> None:
        mode = member.mode & _RIGHTS
        fd = self._folder(self._names)
        try:
            if stat.S_IMODE(os.fstat(fd).st_mode) != mode | _OWN:
                os.fchmod(fd, mode | _OWN)
        finally:
            os.close(fd)
        if mode | _OWN != mode:
            self._rights.append((self._names, mode))
        self.folders += 1

    def _make_file(self, member: tar.Member) -> None:
        temporary = _beside()
        self._writing = os.open(temporary, _MAKE, 0o600, dir_fd=self._at)
        self._temporary = temporary
        self._mtime_s = member.mtime_s
        os.fchmod(self._writing, member.mode & _RIGHTS)

    def _finish(self) -> None:
        os.utime(self._writing, (self._mtime_s, self._mtime_s))
        os.close(self._writing)
        self._writing = -1
        self._put()
        self.files += 1

    def _make_link(self, member: tar.Member) -> None:
        temporary = _beside()
        if member.kind == tar.SYMLINK:
            tar.check_target(member, len(self._names) - 1)
            os.symlink(member.target, temporary, dir_fd=self._at)
        else:
            self._link(member, temporary)
        self._temporary = temporary
        self._put()
        self.links += 1

    def _link(self, member: tar.Member, temporary: str) -> None:
        """A hard link, to a regular file in the folder: a symbolic one would lead elsewhere from another place."""
        *above, name = tar.parts(member.target) or [""]
        source = self._folder(above, make=False)
        try:
            if not name or not stat.S_ISREG(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
                raise tar.TarError(
                    f"The archive's hard link {tar.shown(member.name)} is to {tar.shown(member.target)}, which is no file.", member.name
                )
            os.link(name, temporary, src_dir_fd=source, dst_dir_fd=self._at, follow_symlinks=False)
        finally:
            os.close(source)

    def _put(self) -> None:
        """Give what is complete its name."""
        os.rename(self._temporary, self._names[-1], src_dir_fd=self._at, dst_dir_fd=self._at)
        self._temporary = ""
        os.close(self._at)
        self._at = -1

    def _folder(self, names: list[str], *, make: bool = True) -> int:
        """The folder of that path, open; the caller closes it."""
        same = 0
        while same < min(len(names), len(self._held)) and names[same] == self._held[same][0]:
            same += 1
        for _, fd in self._held[same:]:
            os.close(fd)
        del self._held[same:]
        fd = os.dup(self._held[-1][1] if self._held else self._root)
        try:
            for name in names[same:]:
                below = _enter(fd, name, make=make)
                os.close(fd)
                fd = below
                if len(self._held) < HELD_FOLDERS:
                    self._held.append((name, os.dup(fd)))
        except OSError:
            os.close(fd)
            raise
        return fd

    def _shown(self) -> str:
        return f"{self._path}/{'/'.join(self._names)}"

    def _failed(self, error: OSError, member: tar.Member) -> Refused:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            return Refused(
                "path_invalid",
                f"The archive's entry {tar.shown(member.name)} leads through a link, or through what is no folder.",
                "Remove that first.",
            )
        if member.kind == tar.HARDLINK and error.errno == errno.ENOENT:
            return Refused(
                "path_invalid", f"The archive's hard link {tar.shown(member.name)} is to {tar.shown(member.target)}, which is not in the folder.", ""
            )
        return failed(error, self._shown())


def _enter(fd: int, name: str, *, make: bool) -> int:
    """A folder in an open one; made where there is none."""
    try:
        return open_folder(name, fd)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o755, dir_fd=fd)
    except FileExistsError:
        pass  # somebody else was faster
    return open_folder(name, fd)


def _beside() -> str:
    """A name for what is not complete yet."""
    return f".{os.urandom(8).hex()}.part"


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack what comes."""
    path = request["path"]
    try:
        os.makedirs(path, 0o755, exist_ok=True)
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise failed(error, path) from None
    unpacking = Unpacking(root, path, request["entries"])
    try:
        _unpack(unpacking)
        unpacking.settle()
    except tar.TarError as error:
        raise Refused("invalid_request", error.message, "What came before it was unpacked.") from None
    finally:
        unpacking.close()
    return {"files": unpacking.files, "folders": unpacking.folders, "links": unpacking.links, "bytes": unpacking.bytes}


def _unpack(unpacking: Unpacking) -> None:
    reader, inflater = tar.Reader(), Inflater()
    while data := os.read(REQUESTS, READ_BYTES):
        if reader.ended:
            continue  # padding
        for piece in inflater.feed(data):
            for event in reader.feed(piece):
                unpacking.take(event)
    reader.close()


def main() -> None:
    """The program."""
    serve(work)
