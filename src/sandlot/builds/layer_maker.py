"""Layers of builds: turns the files that a sandbox has changed into a stored tar archive without compression.

Invariant: What a sandbox sends is translated here and never unpacked.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from sandlot.builds.layers import LayerStore
from sandlot.builds.limits import CHUNK_BYTES
from sandlot.builds.overlays import FileEnd, FileRecord, OverlayReader
from sandlot.host.blocking import run_blocking
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError
from sandlot.model.images import Layer
from sandlot.model.streams import Stream

MEDIA_TYPE: Final = "application/vnd.oci.image.layer.v1.tar"
LEFT_OUT: Final = frozenset({b"/etc/hostname", b"/etc/hosts", b"/etc/resolv.conf", b"/etc/mtab", b"/.dockerenv"})
"""Files that the service writes in every sandbox."""
_WHITEOUT: Final = b".wh."
_KINDS: Final = {
    "file": tarfile.REGTYPE,
    "folder": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "link": tarfile.LNKTYPE,
    "pipe": tarfile.FIFOTYPE,
    "gone": tarfile.REGTYPE,
}


class LayerMaker:
    """Turns the files that a sandbox has changed into a stored layer.

    Args:
        layers: Stored layers.
        temporary: Folder for temporary files of builds, which is emptied when the service starts.
    """

    def __init__(self, layers: LayerStore, temporary: Path) -> None:
        self.layers = layers
        self.temporary = temporary

    async def open(self) -> None:
        """Create the folder for temporary files, and empty it."""
        await run_blocking(self._open)

    async def make(self, changes: Stream[bytes], reader: OverlayReader) -> Layer:
        """Store the changed files of a sandbox as a layer.

        Args:
            changes: Files that differ from the base, as ``node.snapshots.stream_changes`` returns them.
            reader: Reader with the limits.

        Raises:
            ConflictError: The sandbox sends invalid data.
            LimitError: The layer is too large, or the disk is full.
        """
        try:
            with self.layers.begin() as writer:
                archive, pending = LayerArchive(writer.append), bytearray()
                async for data in changes:
                    pending += data
                    if len(pending) >= CHUNK_BYTES:
                        batch, pending = bytes(pending), bytearray()
                        await run_blocking(self.layers.check_space)
                        await run_blocking(_translate, reader, archive, batch)
                await run_blocking(_translate, reader, archive, bytes(pending))
                reader.close()
                archive.end()
                return await writer.finish(MEDIA_TYPE)
        except OSError as error:
            raise LimitError("The disk of the service's host is full.", code=ErrorCode.NODE_DISK_FULL, hint="Delete old builds.") from error
        finally:
            await changes.aclose()

    def _open(self) -> None:
        self.temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.temporary.iterdir():
            path.unlink()


class LayerArchive:
    """Writes the tar archive of a layer.

    Args:
        write: Function that writes bytes of the archive.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._padding = 0
        self._is_left_out = False

    def add(self, record: FileRecord) -> None:
        """Begin an entry. The content of a file follows.

        Raises:
            InvalidRequestError: The name of the file has a meaning in layers.
        """
        self._is_left_out = record.path in LEFT_OUT
        if self._is_left_out:
            return
        folder, _, name = record.path[1:].rpartition(b"/")
        path = record.path[1:]
        if name.startswith(_WHITEOUT):
            raise InvalidRequestError(
                f"The file {_text(record.path)!a} cannot be a part of a template: names that begin with `.wh.` are reserved.",
                hint="Remove or rename the file.",
            )
        if record.kind == "gone":
            path = (folder + b"/" if folder else b"") + _WHITEOUT + name
        info = tarfile.TarInfo(_text(path))
        info.type, info.size = _KINDS[record.kind], record.size if record.kind == "file" else 0
        info.mode, info.uid, info.gid, info.mtime = record.mode, record.uid, record.gid, record.mtime_ns // 10**9
        info.linkname = _text(record.target[1:] if record.kind == "link" else record.target)
        info.pax_headers = {f"SCHILY.xattr.{key}": _text(value) for key, value in record.attributes.items()}
        self._write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        self._padding = -info.size % tarfile.BLOCKSIZE

    def put(self, data: bytes) -> None:
        """Write content of the last file."""
        if not self._is_left_out:
            self._write(data)

    def end_file(self) -> None:
        """End the content of a file."""
        self.put(bytes(self._padding))

    def end(self) -> None:
        """Write the end of the archive."""
        self._write(bytes(2 * tarfile.BLOCKSIZE))


def _translate(reader: OverlayReader, archive: LayerArchive, data: bytes) -> None:
    for event in reader.feed(data):
        if isinstance(event, FileRecord):
            archive.add(event)
        elif isinstance(event, FileEnd):
            archive.end_file()
        else:
            archive.put(event)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
