"""Packs a folder, or one file, as a tar archive, plain or compressed by gzip, that goes out as bytes.

Laws:
- Names are relative to the folder; one file goes by its own name. Regular files, folders and symbolic links; pipes, sockets and devices are
  left out, and the result says how many.
- No link is followed below the folder; what is packed is what was found there (device and inode).
- What cannot be read ends it: an archive that seems whole has everything. The error is in the archive as well, for clients that know it.
"""

from __future__ import annotations

import os
import stat
import zlib

from sandlot.guest.helpers.helper import Refused, failed, send, serve, tell
from sandlot.guest.helpers.walk import Unopened, walk
from sandlot.protocol import tar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.helpers.walk import Folder

PIECE_BYTES = 256 * 1024
LEVEL = 3
"""Of zlib: 6, its default, takes three times as long for a tenth less."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class Packing:
    """One archive on its way out.

    Args:
        compress: Whether by gzip.
    """

    __slots__ = ("_deflate", "_pending", "_pending_bytes", "bytes", "files", "folders", "left_out", "links")

    def __init__(self, *, compress: bool) -> None:
        self._deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, 31) if compress else None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self.files = self.folders = self.links = self.left_out = self.bytes = 0

    def put(self, data: bytes) -> None:
        """The next bytes of it."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= PIECE_BYTES:
            self.flush()

    def flush(self, *, last: bool = False, cut: bool = False) -> None:
        """Send what waits."""
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        if self._deflate is not None:
            data = self._deflate.compress(data)
            if last or cut:
                data += self._deflate.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        send(data)

    def fail(self, error: Refused) -> None:
        """Say in the archive why it ends here."""
        self.put(tar.message("SANDLOT.code", error.code) + tar.message("SANDLOT.error", error.message))
        self.flush(cut=True)

    def folder(self, folder: Folder, root: str) -> None:
        """All that is in one folder, but for what is in folders in it."""
        for name, found in folder.entries():
            path = folder.path(name)
            member = tar.Member(path, tar.FILE, mode=stat.S_IMODE(found.st_mode), mtime_s=max(0, int(found.st_mtime)))
            try:
                if stat.S_ISREG(found.st_mode):
                    self.file(member, os.open(name, _READ, dir_fd=folder.fd), found, f"{root}/{path}")
                elif stat.S_ISDIR(found.st_mode):
                    member.kind = tar.FOLDER
                    self.folders += 1
                    self.put(tar.head(member))
                elif stat.S_ISLNK(found.st_mode):
                    member.kind, member.target = tar.SYMLINK, os.readlink(name, dir_fd=folder.fd)
                    self.links += 1
                    self.put(tar.head(member))
                else:
                    self.left_out += 1
            except FileNotFoundError:
                continue  # gone since the folder was read
            except OSError as error:
                raise failed(error, f"{root}/{path}") from None
        if folder.error is not None:
            raise failed(folder.error, f"{root}/{folder.inside}")
        if folder.cut:
            raise Refused("too_large", f"{tar.shown(f'{root}/{folder.inside}')} has too many entries to be packed.", "Pack it by a command inside.")

    def file(self, member: tar.Member, fd: int, found: os.stat_result, path: str) -> None:
        """One regular file that was opened; closes it."""
        try:
            opened = os.fstat(fd)
            if (opened.st_dev, opened.st_ino) != (found.st_dev, found.st_ino):
                return  # another one has its name by now
            member.size = left = opened.st_size
            self.put(tar.head(member))
            while left:
                piece = os.read(fd, min(left, PIECE_BYTES))
                if not piece:
                    raise Refused("conflict", f"{tar.shown(path)} became shorter while it was read.", "Try again while nothing writes to it.")
                left -= len(piece)
                self.put(piece)
        finally:
            os.close(fd)
        self.put(tar.padding(member.size))
        self.files += 1
        self.bytes += member.size


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Pack what was asked for."""
    root = os.path.realpath(request["path"])
    packing = Packing(compress=request["gzip"])
    try:
        found = os.stat(root)
        alone = None
        if not stat.S_ISDIR(found.st_mode):
            if not stat.S_ISREG(found.st_mode):
                raise Refused("path_invalid", f"{tar.shown(request['path'])} is neither a file nor a folder.", "Name a file or a folder.")
            alone = os.open(root, _READ)
        else:
            os.close(os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise failed(error, request["path"]) from None
    tell({"opened": True})
    try:
        if alone is not None:
            name = os.path.basename(root)
            packing.file(tar.Member(name, tar.FILE, mode=stat.S_IMODE(found.st_mode), mtime_s=max(0, int(found.st_mtime))), alone, found, root)
        else:
            _pack(packing, root)
    except Refused as error:
        packing.fail(error)
        raise
    packing.put(tar.END)
    packing.flush(last=True)
    return {
        "files": packing.files,
        "folders": packing.folders,
        "links": packing.links,
        "bytes": packing.bytes,
        "left_out": packing.left_out,
    }


def _pack(packing: Packing, root: str) -> None:
    try:
        for folder in walk(root):
            if isinstance(folder, Unopened):
                if folder.error is not None and not isinstance(folder.error, FileNotFoundError):
                    raise failed(folder.error, f"{root}/{folder.inside}")
                continue  # gone since its parent was read
            packing.folder(folder, root.rstrip("/"))
    except OSError as error:
        raise failed(error, root) from None


def main() -> None:
    """The program."""
    serve(work)
