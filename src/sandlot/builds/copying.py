"""Copies: the destination of each source, and the entries that a sandbox gets. Pure, except that contents are read."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandlot.builds import overlays
from sandlot.builds.context import Context, Item, unpack
from sandlot.builds.limits import BuildLimits
from sandlot.builds.overlays import FileRecord
from sandlot.builds.plan import Copy
from sandlot.protocol import tar

_KINDS: Final = {tar.FILE: "file", tar.FOLDER: "folder", tar.SYMLINK: "symlink"}
DEFAULT_FILE_MODE: Final = 0o644


def absolute(path: str, folder: str) -> str:
    """Return the absolute path without ``.`` and ``..``. Pure."""
    return "/" + posixpath.normpath(posixpath.join(folder, path)).lstrip("/")


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of a copy.

    Args:
        path: Absolute path.
        is_folder: True if the path ends with a slash, is a folder of the sandbox, or gets several sources.
    """

    path: str
    is_folder: bool

    def of(self, name: str, *, is_folder: bool) -> str:
        """Return the path that a source gets: the contents of a folder go to the destination itself."""
        return self.path if is_folder or not self.is_folder else posixpath.join(self.path, name)


def destination(copy: Copy, folder: str, *, number: int, exists_as_folder: bool) -> Destination:
    """Return the destination of a copy.

    Args:
        copy: The copy.
        folder: Working directory.
        number: Number of files and folders to which the sources expand.
        exists_as_folder: True if the destination is a folder of the sandbox.
    """
    ends = copy.destination.endswith("/") or posixpath.basename(copy.destination) in {".", ".."}
    return Destination(absolute(copy.destination, folder), ends or exists_as_folder or number > 1)


class CopyStream:
    """Makes the overlay that one copy sends to a sandbox.

    Args:
        copy: The copy.
        to: Destination.
    """

    def __init__(self, copy: Copy, to: Destination) -> None:
        self._copy = copy
        self._to = to
        self._records = 1

    def begin(self) -> Iterator[bytes]:
        """Yield the first record and the folders above the destination, which are only created where they are missing."""
        yield overlays.begin()
        yield from self.folders(posixpath.dirname(self._to.path))
        if self._to.is_folder:
            yield from self.folders(self._to.path)

    def folders(self, path: str) -> Iterator[bytes]:
        """Yield a folder and the folders above it."""
        names = [name for name in path.split("/") if name]
        for depth in range(1, len(names) + 1):
            yield self.entry(FileRecord("folder", _bytes("/" + "/".join(names[:depth]))))

    def entry(self, record: FileRecord) -> bytes:
        """Return the bytes of an entry."""
        self._records += 1
        return overlays.entry(record)

    def end(self) -> bytes:
        """Return the last record."""
        return overlays.end(self._records)

    def changed(self, record: FileRecord) -> FileRecord:
        """Return an entry of the source with the mode that the copy sets. The owner is set in the sandbox."""
        return record if self._copy.mode is None else replace(record, mode=self._copy.mode)

    # From a context --------------------------------------------------------------------------------------------------

    def from_context(self, context: Context, items: Sequence[Item], work: Path, limits: BuildLimits) -> Iterator[bytes]:
        """Yield everything that a copy from a context sends. Blocks."""
        yield from self.begin()
        for item in items:
            if self._copy.unpack and item.kind == tar.FILE and (archive := unpack(context, item, work, limits)) is not None:
                try:
                    yield from self._tree(archive, archive.items[""], self._to.path)
                finally:
                    archive.close()
                continue
            path = self._to.of(posixpath.basename(item.name), is_folder=item.kind == tar.FOLDER)
            yield from self._tree(context, item, path)
        for file in self._copy.files:
            path = self._to.of(file.name, is_folder=False)
            yield self.entry(self.changed(FileRecord("file", _bytes(path), mode=DEFAULT_FILE_MODE)))
            yield from _content((file.content,))
        yield self.end()

    def _tree(self, context: Context, item: Item, path: str) -> Iterator[bytes]:
        yield from self._item(context, item, path)
        if item.kind == tar.FOLDER:
            for below, each in context.walk(item):
                yield from self._item(context, each, posixpath.join(path, below))

    def _item(self, context: Context, item: Item, path: str) -> Iterator[bytes]:
        if path == "/":
            return
        target = item.target.encode("utf-8", "surrogateescape")
        record = FileRecord(_KINDS[item.kind], _bytes(path), item.mode, item.uid, item.gid, item.mtime_s * 10**9, target=target)
        yield self.entry(record if item.kind == tar.SYMLINK else self.changed(record))
        if item.kind == tar.FILE:
            yield from _content(context.read(item))


class Renamed:
    """Gives the entries of another sandbox their paths at the destination.

    Args:
        moves: Path in the other sandbox -> path at the destination; the longest one that fits is used.
    """

    def __init__(self, moves: Sequence[tuple[str, str]]) -> None:
        self._moves = sorted(((_bytes(source), _bytes(to)) for source, to in moves), key=lambda each: -len(each[0]))

    def path(self, path: bytes) -> bytes | None:
        """Return the new path, or None if nothing fits. A path that a sandbox made up is not copied."""
        for source, to in self._moves:
            prefix = source.rstrip(b"/")
            if path == source:
                return to
            if path.startswith(prefix + b"/"):
                return to.rstrip(b"/") + path[len(prefix) :]
        return None


def _content(chunks: Iterator[bytes] | tuple[bytes, ...]) -> Iterator[bytes]:
    for chunk in chunks:
        yield overlays.piece(chunk)
    yield overlays.CONTENT_END


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
