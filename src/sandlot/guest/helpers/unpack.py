"""Unpacks a tar archive, plain or compressed with gzip, from the input of the helper into a folder.

Invariants:
- Nothing is written outside the folder: each folder of a path is opened relative to the folder above it, without following a link.
- A file gets its name only when it is complete. An existing file is replaced. An existing link is replaced too, not its target.
- A symbolic link that may lead out of the folder is skipped. The result names the first ``MAX_SKIPPED`` skipped links.
- An error names the entry that was refused. Entries that were unpacked before the error are not removed.
- The files belong to the user that runs the helper; set-uid bits are cleared.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import make_folders, open_folder, path_error
from sandlot.guest.helpers.helper import read, serve
from sandlot.protocol import tar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

READ_BYTES = 256 * 1024
INFLATED_BYTES = 256 * 1024
"""Maximum size of one decompressed piece. A decompression bomb is written in such pieces, so it can fill the disk but not the memory."""
MAX_SKIPPED = 100
MAX_HELD_FOLDERS = 64
"""Number of nested folders that stay open for the next entry. Deeper folders are opened anew for each entry."""
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_GZIP = b"\x1f\x8b"
MAGIC_BYTES = 6
_OTHERS = ((b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PK\x03\x04", "zip"))
_RIGHTS = 0o777
_OWN = 0o700
_REPAIR = "Repair the archive. The entries before the error were unpacked."


class Inflater:
    """Decompresses an archive that may be compressed with gzip (RFC 1952). A gzip file may consist of several members."""

    __slots__ = ("_begun", "_first", "_inflate", "_padded")

    def __init__(self) -> None:
        self._first = b""
        self._begun = False
        self._padded = False
        self._inflate: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Decompress the next part of the archive, and yield the result in pieces. If the archive is not compressed, yield ``data`` unchanged.

        Raises:
            TarError: The compressed data is damaged, or the archive is compressed in a format other than gzip.
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
                if data == _GZIP[:1]:  # a read may end between the two bytes of the magic number
                    self._first = data
                    return
                if self._padded or not data.startswith(_GZIP):  # everything after the last gzip member is padding
                    self._padded = True
                    return
                self._inflate = zlib.decompressobj(31)
            try:
                piece = self._inflate.decompress(data, INFLATED_BYTES)
            except zlib.error as error:
                raise tar.TarError(f"The archive's compressed data is damaged ({error}).") from None
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            yield piece

    def _begin(self, data: bytes) -> None:
        self._begun, self._first = True, b""
        for magic, name in _OTHERS:
            if data.startswith(magic):
                raise tar.TarError(f"The archive is compressed with {name}; it must be plain or compressed with gzip.")
        if data.startswith(_GZIP):
            self._inflate = zlib.decompressobj(31)


class ArchiveExtractor:
    """Writes the entries of one archive into a folder.

    Args:
        root: Descriptor of the folder.
        path: Path of the folder, for error messages.
        max_entries: Maximum number of entries that the archive may have.

    Attributes:
        files: Number of files that were written.
        folders: Number of folders.
        links: Number of symbolic and hard links.
        bytes: Total size of the files.
        skipped: Names of the first ``MAX_SKIPPED`` links that were skipped, as shown in messages.
    """

    __slots__ = (
        "_at",
        "_entries",
        "_held",
        "_max_entries",
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
        "skipped",
    )

    def __init__(self, root: int, path: str, max_entries: int) -> None:
        self._root = root
        self._max_entries = max_entries
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
        self.skipped: list[str] = []

    def take(self, event: tar.Member | memoryview | tar.Finished) -> None:
        """Handle the next event of the tar reader.

        Args:
            event: A header (``Member``) begins an entry. Bytes are content of the file that the last header has begun, and ``Finished`` ends
                this file.

        Raises:
            TarError: The entry is not allowed, for example because it is outside the folder.
            RpcError: The entry cannot be written, or the archive has too many entries.
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
            raise path_error(error, self._shown()) from None

    def set_folder_modes(self) -> None:
        """Set the final modes of the folders whose owner has less than full access.

        Until this call, the owner has full access to these folders, so that entries can be added.
        """
        for names, mode in reversed(self._rights):
            fd = self._folder(names)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Remove the temporary file of an entry that is not complete. Does nothing if there is no such file."""
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1
        if self._temporary:
            try:
                os.unlink(self._temporary, dir_fd=self._at)
            except OSError:
                return  # another process has removed the file or its folder

    def _begin(self, member: tar.Member) -> None:
        self._entries += 1
        if self._entries > self._max_entries:
            raise RpcError(
                "too_large",
                f"The archive has more than {self._max_entries} entries, the maximum; {tar.shown(member.name)} was not unpacked.",
                "Split the archive.",
            )
        self._names = tar.parts(member.name)
        if not self._names:
            if member.kind != tar.FOLDER:
                raise tar.TarError(f"The archive's entry {tar.shown(member.name)} would replace the target folder.", member.name)
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
        temporary = _temporary_name()
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
        temporary = _temporary_name()
        if member.kind == tar.SYMLINK:
            target = tar.inner_target(member.target, len(self._names) - 1, self._path)
            if target is None:
                self._skip(member)
                return
            os.symlink(target, temporary, dir_fd=self._at)
        else:
            self._link(member, temporary)
        self._temporary = temporary
        self._put()
        self.links += 1

    def _skip(self, member: tar.Member) -> None:
        os.close(self._at)
        self._at = -1
        if len(self.skipped) < MAX_SKIPPED:
            self.skipped.append(tar.shown(member.name))

    def _link(self, member: tar.Member, temporary: str) -> None:
        """Create a hard link to a regular file in the folder. Other targets are refused: a symbolic link could lead out of the folder."""
        *above, name = tar.parts(member.target) or [""]
        source = self._folder(above, make=False)
        try:
            if not name or not stat.S_ISREG(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
                raise tar.TarError(
                    f"The archive's hard link {tar.shown(member.name)} has the target {tar.shown(member.target)}, which is not a file.", member.name
                )
            os.link(name, temporary, src_dir_fd=source, dst_dir_fd=self._at, follow_symlinks=False)
        finally:
            os.close(source)

    def _put(self) -> None:
        """Rename a complete temporary file or link to the name of its entry."""
        os.rename(self._temporary, self._names[-1], src_dir_fd=self._at, dst_dir_fd=self._at)
        self._temporary = ""
        os.close(self._at)
        self._at = -1

    def _folder(self, names: list[str], *, make: bool = True) -> int:
        """Open a folder below the root, and return its descriptor, which the caller must close.

        Args:
            names: Path of the folder relative to the root, as a list of names; empty for the root itself.
            make: True to create folders that do not exist.
        """
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
                if len(self._held) < MAX_HELD_FOLDERS:
                    self._held.append((name, os.dup(fd)))
        except OSError:
            os.close(fd)
            raise
        return fd

    def _shown(self) -> str:
        return f"{self._path}/{'/'.join(self._names)}"

    def _failed(self, error: OSError, member: tar.Member) -> RpcError:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            return RpcError(
                "path_not_directory",
                f"Entry {tar.shown(member.name)} of the archive cannot be unpacked: a parent folder of its path is a link or a file.",
                "Remove the link or file from the target folder first.",
            )
        if member.kind == tar.HARDLINK and error.errno == errno.ENOENT:
            return RpcError(
                "invalid_request",
                f"The archive's hard link {tar.shown(member.name)} has the target {tar.shown(member.target)}, which does not exist.",
                _REPAIR,
            )
        return path_error(error, self._shown())


def _enter(fd: int, name: str, *, make: bool) -> int:
    """Open a subfolder of an open folder, and return its descriptor. If ``make`` is True, create the subfolder if it does not exist."""
    try:
        return open_folder(name, fd)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, 0o755, dir_fd=fd)
    except FileExistsError:
        pass  # another process has created the folder meanwhile
    return open_folder(name, fd)


def _temporary_name() -> str:
    """Return a new name for an incomplete file."""
    return f".{os.urandom(8).hex()}.part"


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Unpack the archive from the input into the folder of the request, and return the numbers of unpacked entries."""
    path = request["path"]
    try:
        make_folders(path)
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise path_error(error, path) from None
    extractor = ArchiveExtractor(root, path, request["entries"])
    try:
        _unpack(extractor)
        extractor.set_folder_modes()
    except tar.TarError as error:
        raise RpcError("invalid_request", error.message, _REPAIR) from None
    finally:
        extractor.close()
    return {
        "files": extractor.files,
        "folders": extractor.folders,
        "links": extractor.links,
        "bytes": extractor.bytes,
        "skipped": extractor.skipped,
    }


def _unpack(extractor: ArchiveExtractor) -> None:
    reader, inflater = tar.Reader(), Inflater()
    while data := read(READ_BYTES):
        if reader.ended:
            continue  # all bytes after the end of the archive are padding
        for piece in inflater.feed(data):
            for event in reader.feed(piece):
                extractor.take(event)
    reader.close()


def main() -> None:
    """Run the helper that unpacks an archive."""
    serve(work)
