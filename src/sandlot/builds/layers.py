"""Layers of templates on this host: files that are named by their digests.

Invariants:
- A layer has its final name only when it is complete and durable, and never changes. Other files in the folder are incomplete;
  :meth:`LayerStore.prune` removes those that no writer of this process has open.
- A layer is kept as long as a build needs it, because its root image can be made again only from it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from sandlot.host import durable
from sandlot.host.blocking import run_blocking, run_in_own_thread
from sandlot.model.errors import ConflictError
from sandlot.model.images import DIGEST, Layer

READ_BYTES: Final = 1024 * 1024
_ALGORITHM: Final = "sha256:"
_INCOMPLETE: Final = "part-"


class LayerStore:
    """The layers of all builds of a service.

    Args:
        folder: Folder of the layers, which is created if it does not exist.
        check_space: Function that raises LimitError while the disk has no room for layers. Called often, in a thread. None: all space may be used.
    """

    def __init__(self, folder: Path, check_space: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self.check_space = check_space or _ignore_space
        self._writing: set[str] = set()

    def has(self, digest: str) -> bool:
        """Return whether a layer is stored. Blocks for the time of one system call."""
        return self._path(digest).is_file()

    async def open(self, layer: Layer) -> AsyncIterator[bytes]:
        """Yield a layer as it is stored.

        Raises:
            ConflictError: The layer was removed.
        """
        try:
            descriptor = await run_blocking(os.open, self._path(layer.digest), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ConflictError(
                f"The layer {layer.digest[:19]} of the template was removed from this host.",
                hint="Build the template again.",
                fields={"layer": layer.digest},
            ) from None
        try:
            while piece := await run_blocking(os.read, descriptor, READ_BYTES):
                yield piece
        finally:
            os.close(descriptor)

    def begin(self) -> LayerWriter:
        """Return a writer of a new layer. Use it as a context manager."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{_INCOMPLETE}{secrets.token_hex(16)}"
        self._writing.add(name)
        return LayerWriter(self._folder, name, self._writing, self.check_space)

    async def put(self, layer: Layer, pieces: AsyncIterator[bytes]) -> None:
        """Store a layer that is known already, for example one of a registry. Does nothing if the layer is stored.

        Raises:
            ConflictError: The bytes are not those of the layer.
        """
        if self.has(layer.digest):
            return
        with self.begin() as writer:
            async for piece in pieces:
                await writer.write(piece)
            stored = await writer.finish(layer.media_type, layer.diff_id)
            if stored.digest != layer.digest:
                await run_blocking(self._path(stored.digest).unlink)
                raise ConflictError(f"The layer {layer.digest[:19]} has other content than its digest says.", hint="Try again.")

    async def prune(self, keep: Collection[str]) -> int:
        """Remove all layers except some, and incomplete files that no writer has open. Return the number of removed files.

        Args:
            keep: Digests of the layers that builds need.
        """
        return await run_in_own_thread(self._prune, frozenset(keep))

    def _prune(self, keep: frozenset[str]) -> int:
        wanted = {_file_name(digest) for digest in keep} | self._writing
        strays = [file for file in self._folder.iterdir() if file.name not in wanted] if self._folder.is_dir() else []
        for file in strays:
            file.unlink(missing_ok=True)
        return len(strays)

    def _path(self, digest: str) -> Path:
        if not DIGEST.fullmatch(digest):
            raise ConflictError(f"{digest[:80]!r} is not the digest of a layer.", hint="Build the template again.")
        return self._folder / _file_name(digest)


class LayerWriter:
    """Writes one layer. Leaving the ``with`` block removes an incomplete layer."""

    def __init__(self, folder: Path, name: str, writing: set[str], check_space: Callable[[], None]) -> None:
        self._path = folder / name
        self._writing = writing
        self._check_space = check_space
        self._hash = hashlib.sha256()
        self._size = 0
        self._file = os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", READ_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with suppress(OSError):  # the layer is stored already, or removed now
                self._file.close()
            self._path.unlink(missing_ok=True)
        finally:
            self._writing.discard(self._path.name)

    async def write(self, piece: bytes) -> None:
        """Append bytes of the layer, as it is stored.

        Raises:
            LimitError: The disk has no room for layers (``node_disk_full``).
            OSError: The disk failed.
        """
        await run_blocking(self._write, piece)

    def append(self, piece: bytes) -> None:
        """Append bytes without a check of the space on the disk. Blocks."""
        self._hash.update(piece)
        self._size += len(piece)
        self._file.write(piece)

    async def finish(self, media_type: str, diff_id: str | None = None) -> Layer:
        """Store the layer under its digest, and return its description.

        Args:
            media_type: Media type, which names the compression.
            diff_id: Digest of the archive without compression. None: the layer is not compressed.
        """
        digest = f"{_ALGORITHM}{self._hash.hexdigest()}"
        await run_in_own_thread(self._publish, digest)
        return Layer(digest, self._size, media_type, diff_id or digest)

    def _write(self, piece: bytes) -> None:
        self._check_space()
        self.append(piece)

    def _publish(self, digest: str) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.rename(self._path.with_name(_file_name(digest)))
        durable.fsync_folder(self._path.parent)


def _ignore_space() -> None:
    """Let layers use all space."""


def _file_name(digest: str) -> str:
    return digest.replace(":", "-")
