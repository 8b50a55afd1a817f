"""Writes a file system as an image, and lists its folders for the index.

The image depends on the file system and the image below alone: files that the program has in memory come first, then files in the order of their
layers. No entry has extended attributes, because gVisor's EROFS cannot read files and folders that have some (``layout.list_attributes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sandlot.builds.merge_program.erofs import ImageWriter
from sandlot.builds.merge_program.files import Files, Node
from sandlot.builds.merge_program.layers import Blob, read_archive
from sandlot.protocol import tar


def write_files(files: Files, blobs: Sequence[Blob], out: ImageWriter) -> int:
    """Write the content of all files that the image below does not have. Return the size of all files.

    Args:
        files: The file system.
        blobs: All layers.
        out: Writer of the image.
    """
    seen: set[int] = set()
    wanted: list[list[tuple[int, str, Node]]] = [[] for _ in blobs]
    size = 0
    for path, node in files.walk():
        if node.kind != tar.FILE or id(node) in seen:
            continue
        seen.add(id(node))
        size += node.size
        if not node.size or node.block is not None:
            continue
        if node.content is None and node.source is not None:
            number, offset = node.source
            wanted[number].append((offset, path, node))
            continue
        out.begin(node)
        out.put(Path(node.path).read_bytes() if node.content is None else node.content)
        out.end()
    for blob, of_layer in zip(blobs, wanted, strict=True):
        if of_layer:
            _copy(blob, sorted(of_layer, key=lambda each: each[:2]), out)
    return size


def list_folders(files: Files) -> dict[bytes, dict[bytes, int]]:
    """Return the name and the time in nanoseconds of all entries, by the path of their folder."""
    folders: dict[bytes, dict[bytes, int]] = {}
    for path, node in files.walk():
        if node.is_folder:
            folders[_bytes(f"/{path}")] = {_bytes(name): child.mtime_ns for name, child in node.children.items()}
    return folders


def _copy(blob: Blob, files: Sequence[tuple[int, str, Node]], out: ImageWriter) -> None:
    """Copy files out of a layer, in the order of their places."""
    pending = iter(files)
    offset, _, node = next(pending)
    left = position = 0
    for chunk in read_archive(blob):
        view, at = memoryview(chunk), 0
        while at < len(view):
            if not left:
                if offset >= position + len(view):
                    break
                at, left = offset - position, node.size
                out.begin(node)
            piece = view[at : at + left]
            out.put(piece)
            at += len(piece)
            left -= len(piece)
            if not left:
                out.end()
                following = next(pending, None)
                if following is None:
                    return
                offset, _, node = following
        position += len(view)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
