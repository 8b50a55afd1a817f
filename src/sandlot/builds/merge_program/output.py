"""Writes a file system as an archive for ``mkfs.erofs``, and lists its folders for the index.

The archive depends on the file system alone, and so does the image: folders and small entries come first, then files in the order of their layers,
then hard links. No entry has extended attributes, because gVisor's EROFS cannot read files and folders that have some
(``layout.list_attributes``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

from sandlot.builds.merge_program.files import Files, Node
from sandlot.builds.merge_program.layers import PIPE, Blob, read_archive
from sandlot.protocol import tar

_TYPES = {tar.FILE: b"0", tar.HARDLINK: b"1", tar.SYMLINK: b"2", tar.FOLDER: b"5", PIPE: b"6"}
_FITS_ID = 8**7
_FITS_SIZE = 8**11


def write_archive(files: Files, blobs: Sequence[Blob], out: IO[bytes]) -> int:
    """Write a file system as an archive. Return the size of all files.

    Args:
        files: The file system.
        blobs: All layers.
        out: File that gets the archive.
    """
    first: dict[int, str] = {}
    wanted: list[list[tuple[int, str, Node]]] = [[] for _ in blobs]
    links: list[tuple[str, Node]] = []
    size = 0
    for path, node in files.walk():
        if id(node) in first:
            links.append((path, node))
            continue
        first[id(node)] = path
        size += node.size
        if node.content is None and node.source is not None:
            number, offset = node.source
            wanted[number].append((offset, path, node))
            continue
        out.write(header(path, node))
        if node.kind == tar.FILE:
            out.write(Path(node.path).read_bytes() if node.content is None else node.content)
            out.write(tar.padding(node.size))
    for blob, of_layer in zip(blobs, wanted, strict=True):
        if of_layer:
            _copy(blob, sorted(of_layer, key=lambda each: each[:2]), out)
    for path, node in links:
        out.write(header(path, node, first[id(node)]))
    out.write(tar.END)
    return size


def list_folders(files: Files) -> dict[bytes, dict[bytes, int]]:
    """Return the name and the time in nanoseconds of all entries, by the path of their folder."""
    folders: dict[bytes, dict[bytes, int]] = {}
    for path, node in files.walk():
        if node.is_folder:
            folders[_bytes(f"/{path}")] = {_bytes(name): child.mtime_ns for name, child in node.children.items()}
    return folders


def header(path: str, node: Node, target: str | None = None) -> bytes:
    """Return the header of an entry.

    Args:
        path: Path of the entry.
        node: The entry.
        target: Path of the first hard link; None: the entry is the first.
    """
    kind = _TYPES[node.kind if target is None else tar.HARDLINK]
    size = node.size if kind == b"0" else 0
    name = _bytes(f"./{path}/" if node.is_folder and path else f"./{path}")
    link = _bytes(node.target) if target is None else _bytes(f"./{target}")
    seconds, nanoseconds = divmod(node.mtime_ns, 10**9)
    records = tar.record(b"mtime", b"%d.%09d" % (seconds, nanoseconds)) if nanoseconds or seconds >= _FITS_SIZE else b""
    for key, value in ((b"path", name), (b"linkpath", link)):
        if len(value) > 100:  # noqa: PLR2004 - bytes of the field
            records += tar.record(key, value)
    for key, number, limit in ((b"uid", node.uid, _FITS_ID), (b"gid", node.gid, _FITS_ID), (b"size", size, _FITS_SIZE)):
        if number >= limit:
            records += tar.record(key, b"%d" % number)
    block = _block(name, kind, node.mode, node.uid, node.gid, size, seconds, link)
    if not records:
        return block
    return _block(b"PaxHeader", b"x", 0o644, 0, 0, len(records), 0, b"") + records + tar.padding(len(records)) + block


def _copy(blob: Blob, files: Sequence[tuple[int, str, Node]], out: IO[bytes]) -> None:
    """Copy files out of a layer, in the order of their places."""
    pending = iter(files)
    offset, path, node = next(pending)
    left = position = 0
    for chunk in read_archive(blob):
        view, at = memoryview(chunk), 0
        while at < len(view):
            if not left:
                if offset >= position + len(view):
                    break
                at, left = offset - position, node.size
                out.write(header(path, node))
            piece = view[at : at + left]
            out.write(piece)
            at += len(piece)
            left -= len(piece)
            if not left:
                out.write(tar.padding(node.size))
                following = next(pending, None)
                if following is None:
                    return
                offset, path, node = following
        position += len(view)


def _block(name: bytes, kind: bytes, mode: int, uid: int, gid: int, size: int, seconds: int, link: bytes) -> bytes:
    fields = (
        name[:100].ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"%07o\0%07o\0" % (uid if uid < _FITS_ID else 0, gid if gid < _FITS_ID else 0),
        b"%011o\0" % (size if size < _FITS_SIZE else 0),
        b"%011o\0" % min(seconds, _FITS_SIZE - 1),
        b" " * 8,
        kind,
        link[:100].ljust(100, b"\0"),
        b"ustar\x0000",
    )
    block = b"".join(fields).ljust(tar.BLOCK_BYTES, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
