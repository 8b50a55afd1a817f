"""Packs a folder or a file as a tar archive, plain or compressed with gzip, and sends the bytes.

Invariants:
- Names in the archive are relative to the packed folder. A file that is packed alone keeps its name.
- Regular files, folders and symbolic links are packed. Pipes, sockets and devices are left out, and the result contains their number.
- No link is followed below the folder. A file that was replaced after its folder was read is skipped (device and inode are compared).
- An entry that cannot be read ends the packing, so a complete archive contains all entries. The error is also written into the archive, for
  clients that know the format (``tar.ERROR_CODE``).
"""

from __future__ import annotations

import os
import stat
import zlib

from sandlot.guest.errors import RpcError
from sandlot.guest.fs.paths import path_error
from sandlot.guest.helpers.helper import send, send_message, serve
from sandlot.guest.helpers.walk import UnreadableFolder, walk
from sandlot.protocol import tar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.helpers.walk import Folder

CHUNK_BYTES = 256 * 1024
COMPRESSION_LEVEL = 3
"""Compression level of zlib. The default, 6, takes three times as long and saves 10 %."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class ArchiveWriter:
    """Writes one tar archive to the host.

    Args:
        compress: True to compress the archive with gzip.

    Attributes:
        files: Number of files that were added to the archive.
        folders: Number of folders.
        links: Number of symbolic links.
        left_out: Number of entries that were left out because of their kind, such as sockets.
        bytes: Total size of the files.
    """

    __slots__ = ("_deflate", "_pending", "_pending_bytes", "bytes", "files", "folders", "left_out", "links")

    def __init__(self, *, compress: bool) -> None:
        self._deflate = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, 31) if compress else None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.files = self.folders = self.links = self.left_out = self.bytes = 0

    def put(self, data: bytes) -> None:
        """Append bytes to the archive. The bytes are buffered and sent in pieces of at least ``CHUNK_BYTES``."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= CHUNK_BYTES:
            self.flush()

    def flush(self, *, last: bool = False, cut: bool = False) -> None:
        """Send the buffered bytes to the host.

        Args:
            last: True if this is the end of the archive. The gzip stream is then ended too.
            cut: True if the archive ends here because of an error. The gzip stream is flushed, so that all bytes that were added can be decompressed.
        """
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._deflate is not None:
            data = self._deflate.compress(data)
            if last or cut:
                data += self._deflate.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        send(data)

    def fail(self, error: RpcError) -> None:
        """Write an error as the last entry of the incomplete archive, and send the buffered bytes."""
        self.put(tar.message_header(tar.ERROR_CODE, error.code) + tar.message_header(tar.ERROR_MESSAGE, error.message))
        self.flush(cut=True)

    def add_folder(self, folder: Folder, root: str) -> None:
        """Add the direct entries of a folder to the archive.

        Args:
            folder: Folder to add, as :func:`~sandlot.guest.helpers.walk.walk` yields it.
            root: Path of the packed folder, for error messages.

        Raises:
            RpcError: An entry cannot be read, or the folder has too many entries.
        """
        for name, found in folder.entries():
            path = folder.path(name)
            member = tar.Member(path, tar.FILE, mode=stat.S_IMODE(found.st_mode), mtime_s=max(0, int(found.st_mtime)))
            try:
                if stat.S_ISREG(found.st_mode):
                    self.add_file(member, os.open(name, _READ, dir_fd=folder.fd), found, f"{root}/{path}")
                elif stat.S_ISDIR(found.st_mode):
                    member.kind = tar.FOLDER
                    self.folders += 1
                    self.put(tar.header(member))
                elif stat.S_ISLNK(found.st_mode):
                    member.kind, member.target = tar.SYMLINK, os.readlink(name, dir_fd=folder.fd)
                    self.links += 1
                    self.put(tar.header(member))
                else:
                    self.left_out += 1
            except FileNotFoundError:
                continue  # the entry was removed after its folder was listed
            except OSError as error:
                raise path_error(error, f"{root}/{path}") from None
        if folder.error is not None:
            raise path_error(folder.error, f"{root}/{folder.inside}")
        if folder.cut:
            raise RpcError(
                "too_large",
                f"{tar.shown(f'{root}/{folder.inside}')} has too many entries to be packed.",
                "Pack the folder with a command in the sandbox.",
            )

    def add_file(self, member: tar.Member, fd: int, found: os.stat_result, path: str) -> None:
        """Add a regular file to the archive. Skip the file if it was replaced by another file.

        Args:
            member: Header of the file, without its size.
            fd: Descriptor of the file; ownership passes to this method.
            found: Result of lstat(2) for the file when its folder was listed.
            path: Path of the file, for error messages.

        Raises:
            RpcError: ``conflict``: the file became shorter while it was read.
        """
        try:
            opened = os.fstat(fd)
            if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
                return  # the file was replaced by another file
            member.size = left = opened.st_size
            self.put(tar.header(member))
            while left:
                piece = os.read(fd, min(left, CHUNK_BYTES))
                if not piece:
                    raise RpcError("conflict", f"{tar.shown(path)} became shorter while it was read.", "Retry when no program writes to the file.")
                left -= len(piece)
                self.put(piece)
        finally:
            os.close(fd)
        self.put(tar.padding(member.size))
        self.files += 1
        self.bytes += member.size


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Pack the file or folder of the request, and return the numbers of packed entries."""
    root = os.path.realpath(request["path"])
    archive = ArchiveWriter(compress=request["gzip"])
    try:
        found = os.stat(root)
        alone = None
        if not stat.S_ISDIR(found.st_mode):
            if not stat.S_ISREG(found.st_mode):
                raise RpcError(
                    "path_not_regular", f"{tar.shown(request['path'])} is neither a file nor a folder.", "Pass the path of a file or a folder."
                )
            alone = os.open(root, _READ)
        else:
            os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise path_error(error, request["path"]) from None
    send_message({"opened": True})
    try:
        if alone is not None:
            name = os.path.basename(root)
            archive.add_file(tar.Member(name, tar.FILE, mode=stat.S_IMODE(found.st_mode), mtime_s=max(0, int(found.st_mtime))), alone, found, root)
        else:
            _pack(archive, root)
    except RpcError as error:
        archive.fail(error)
        raise
    archive.put(tar.END)
    archive.flush(last=True)
    return {
        "files": archive.files,
        "folders": archive.folders,
        "links": archive.links,
        "bytes": archive.bytes,
        "left_out": archive.left_out,
    }


def _pack(archive: ArchiveWriter, root: str) -> None:
    try:
        for folder in walk(root):
            if isinstance(folder, UnreadableFolder):
                if folder.error is not None and not isinstance(folder.error, FileNotFoundError):
                    raise path_error(folder.error, f"{root}/{folder.inside}")
                continue  # the folder was removed after its parent was listed
            archive.add_folder(folder, root.rstrip("/"))
    except OSError as error:
        raise path_error(error, root) from None


def main() -> None:
    """Run the helper that packs an archive."""
    serve(work)
