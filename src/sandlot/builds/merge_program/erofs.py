"""EROFS images: reads an image that mkfs.erofs has made of a tree of the service, and writes a new image that keeps the blocks of such an image.

Only what the kernel of gVisor reads is written (``pkg/erofs`` of gVisor; https://docs.kernel.org/filesystems/erofs.html): no compression, no extended
attributes, and no content of files beside their inodes. A new image consists of:

==================  =================================================================================================================
block 0             the superblock
image below         all blocks of the image below except its first one, and a copy of the superblock; nothing if there is no image below
files               content of each other file, from the beginning of a block
folders             blocks of folders that are larger than the rest of a block
metadata            all inodes, each with the target of a symbolic link or the last entries of a folder behind it
==================  =================================================================================================================

The inodes of the image below are not used anymore, so a layer can change, hide and link everything in it. Their blocks are the price: 1 to 2 MB.
"""

from __future__ import annotations

import mmap
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sandlot.builds.merge_program.files import Files, Node
from sandlot.builds.merge_program.layers import PIPE, is_captured
from sandlot.protocol import tar

BLOCK_BYTES = 4096
_BLOCK_BITS = 12
_SLOT_BYTES = 32
"""An inode begins at a multiple of this number of bytes, and its number counts these."""

_SUPERBLOCK_AT = 1024
_SUPERBLOCK = struct.Struct("<IIIBBHQQIIII16s16sIHHH38x")
"""Magic, checksum, features, bits of the block size, slots, root, inodes, time (seconds, nanoseconds), blocks, first block of the metadata and of the
attributes, UUID, name, incompatible features, compression, devices, slot of the devices."""
_MAGIC = 0xE0F5E1E2
_HAS_MTIME = 2
_COMPACT = struct.Struct("<HHHHIIIIHHI")
"""Format, attributes, mode, links, size, reserved, first block, number, user id, group id, reserved."""
_INODE = struct.Struct("<HHHHQIIIIQII16x")
"""Format, attributes, mode, reserved, size, first block, number, user id, group id, time (seconds, nanoseconds), links."""
_ENTRY = struct.Struct("<QHBB")
"""Inode, place of the name in the block, type, reserved."""
_EXTENDED, _PLAIN, _INLINE = 1, 0, 2 << 1
"""Bits of the format of an inode: the long form; all data in blocks, or the last part behind the inode."""
_LAYOUT = 7 << 1
_NAME_BYTES = 255
_ATTRIBUTES_BYTES, _ATTRIBUTE_BYTES = 12, 4

_MODES = {tar.FILE: stat.S_IFREG, tar.FOLDER: stat.S_IFDIR, tar.SYMLINK: stat.S_IFLNK, PIPE: stat.S_IFIFO}
_KINDS = {mode: kind for kind, mode in _MODES.items()}
_TYPES = {tar.FILE: 1, tar.FOLDER: 2, PIPE: 5, tar.SYMLINK: 7}


# Reading -------------------------------------------------------------------------------------------------------------


def read_image(path: Path, uuid: bytes, files: Files) -> int:
    """Add the files of an image to an empty file system, and return the number of blocks of the image.

    The content of the files stays where it is (:attr:`Node.block`). The image is one of the service itself, and is not checked.

    Args:
        path: File of the image.
        uuid: UUID of the image.
        files: The file system.

    Raises:
        ValueError: The image has another UUID.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as image:
        reader = _Reader(image)
        if reader.uuid != uuid:
            raise ValueError("the image of the template was made again meanwhile")
        root = reader.node(reader.root)
        reader.fill(root, reader.root, "")
        files.root = root
        return len(image) // BLOCK_BYTES


class _Reader:
    """Reads the inodes and folders of an image."""

    def __init__(self, image: mmap.mmap) -> None:
        self._image = image
        found = _SUPERBLOCK.unpack_from(image, _SUPERBLOCK_AT)
        self.uuid, self.root, self._time_ns, self._metadata = found[12], found[5], found[7] * 10**9 + found[8], found[10] * BLOCK_BYTES
        self._nodes: dict[int, Node] = {}

    def node(self, number: int) -> Node:
        """Return the node of an inode, without the entries of a folder. Names with the same inode get the same node."""
        if number not in self._nodes:
            _, mode, size, block, uid, gid, mtime_ns = self._inode(number)
            kind = _KINDS[stat.S_IFMT(mode)]
            target = self._content(number).decode("utf-8", "surrogateescape") if kind == tar.SYMLINK else ""
            node = self._nodes[number] = Node(kind, stat.S_IMODE(mode), uid, gid, mtime_ns, target=target)
            if kind == tar.FILE:
                node.size, node.block = size, block
        return self._nodes[number]

    def fill(self, folder: Node, number: int, path: str) -> None:
        """Add its entries to a folder, and what is below."""
        data = self._content(number)
        for start in range(0, len(data), BLOCK_BYTES):
            for name, inode, kind in _entries(data[start : start + BLOCK_BYTES]):
                if name not in {b".", b".."} and kind in _TYPES.values():  # devices and sockets are left out
                    text = name.decode("utf-8", "surrogateescape")
                    node = folder.children[text] = self.node(inode)
                    below = f"{path}{text}"
                    if node.is_folder:
                        self.fill(node, inode, f"{below}/")
                    elif node.kind == tar.FILE and is_captured(below, node.size):
                        node.content = self._content(inode)

    def _inode(self, number: int) -> tuple[int, int, int, int, int, int, int]:
        """Return the place of the data behind an inode (0: none), mode, size, first block, user id, group id and time."""
        at = self._metadata + number * _SLOT_BYTES
        (form,) = struct.unpack_from("<H", self._image, at)
        if form & _EXTENDED:
            _, attributes, mode, _, size, block, _, uid, gid, seconds, nanoseconds, _ = _INODE.unpack_from(self._image, at)
            mtime_ns, end = seconds * 10**9 + nanoseconds, at + _INODE.size
        else:
            _, attributes, mode, _, size, _, block, _, uid, gid, _ = _COMPACT.unpack_from(self._image, at)
            mtime_ns, end = self._time_ns, at + _COMPACT.size
        end += _ATTRIBUTES_BYTES + _ATTRIBUTE_BYTES * (attributes - 1) if attributes else 0
        return end if form & _LAYOUT == _INLINE else 0, mode, size, block, uid, gid, mtime_ns

    def _content(self, number: int) -> bytes:
        inline, _, size, block, *_ = self._inode(number)
        tail = size % BLOCK_BYTES if inline else 0
        at = block * BLOCK_BYTES
        return self._image[at : at + size - tail] + self._image[inline : inline + tail]


def _entries(block: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, inode and type of the entries in one block of a folder."""
    count = _ENTRY.unpack_from(block)[1] // _ENTRY.size
    found = [_ENTRY.unpack_from(block, number * _ENTRY.size) for number in range(count)]
    ends = [start for _, start, _, _ in found[1:]] + [len(block)]
    for (inode, start, kind, _), end in zip(found, ends, strict=True):
        yield block[start:end].rstrip(b"\0"), inode, kind


# Writing -------------------------------------------------------------------------------------------------------------


class ImageWriter:
    """Writes everything behind the blocks of the image below. The first block that is written is the superblock, also that of the whole image.

    Args:
        out: New file.
        base_blocks: Number of blocks of the image below; 0 for none.
    """

    def __init__(self, out: IO[bytes], base_blocks: int) -> None:
        self._out = out
        self._next = base_blocks + 1
        self._left = 0
        out.write(bytes(BLOCK_BYTES))

    def begin(self, node: Node) -> None:
        """Begin the content of a file."""
        node.block = self._next
        self._left = -node.size % BLOCK_BYTES
        self._next += (node.size + self._left) // BLOCK_BYTES

    def put(self, data: bytes | memoryview) -> None:
        """Write content of the file."""
        self._out.write(data)

    def end(self) -> None:
        """End the content of the file."""
        self._out.write(bytes(self._left))

    def finish(self, files: Files, uuid: bytes, time_s: int) -> None:
        """Write folders, metadata and the superblock.

        Args:
            files: The file system. All its files have their blocks.
            uuid: UUID of the image.
            time_s: Time of the image in seconds since 1970.
        """
        metadata = _Metadata(files, self._next)
        self._out.write(metadata.blocks)
        self._out.write(metadata.inodes)
        first = self._next + len(metadata.blocks) // BLOCK_BYTES
        end = first + len(metadata.inodes) // BLOCK_BYTES
        self._out.seek(_SUPERBLOCK_AT)
        self._out.write(
            _SUPERBLOCK.pack(
                *(_MAGIC, 0, _HAS_MTIME, _BLOCK_BITS, 0, metadata.number_of(files.root), metadata.count),
                *(time_s, 0, end, first, 0, uuid, b"", 0, 0, 0, 0),
            )
        )


class _Inode:
    """Place and links of a node in the image.

    Attributes:
        number: Number, which is the place in the metadata in units of 32 bytes.
        links: Number of its names; of a folder, of the folders in it and two more.
        names: Blocks of a folder, each a sorted list of names.
        size: Size of the data.
        block: First block of the data in whole blocks.
        inline: Size of the part of the data behind the inode.
    """

    __slots__ = ("block", "inline", "links", "names", "number", "size")

    def __init__(self) -> None:
        self.number = self.links = self.block = self.inline = self.size = 0
        self.names: list[list[bytes]] = []


class _Metadata:
    """The inodes and folders of a file system.

    Args:
        files: The file system.
        first_block: Number of the first block of the folders.

    Attributes:
        blocks: Whole blocks of folders and long symbolic links.
        inodes: The inodes, and the data behind them.
        count: Number of inodes.
    """

    def __init__(self, files: Files, first_block: int) -> None:
        self._places: dict[int, _Inode] = {}
        self._first_block = first_block
        self._end, blocks = _INODE.size, 0  # no inode has the number 0
        nodes = []
        for _, node in files.walk():
            place = self._places.get(id(node))
            if place is None:
                place = self._places[id(node)] = self._new_place(node, first_block + blocks)
                blocks += 0 if node.kind == tar.FILE else _blocks(place.size - place.inline)
                nodes.append(node)
            place.links += 1
        self.count = len(nodes)
        self.blocks = bytearray(blocks * BLOCK_BYTES)
        self.inodes = bytearray(_blocks(self._end) * BLOCK_BYTES)
        parents = {id(files.root): files.root}
        for number, node in enumerate(nodes, 1):
            folders = [child for child in node.children.values() if child.is_folder]
            parents.update((id(folder), node) for folder in folders)
            self._write(node, number, len(folders), parents.get(id(node), node))

    def number_of(self, node: Node) -> int:
        """Return the number of the inode of a node."""
        return self._places[id(node)].number

    def _new_place(self, node: Node, block: int) -> _Inode:
        place = _Inode()
        if node.kind == tar.FILE:
            place.size, place.block = node.size, node.block or 0
        elif node.is_folder:
            place.names = _names(node)
            place.size = BLOCK_BYTES * (len(place.names) - 1) + sum(_ENTRY.size + len(name) for name in place.names[-1])
        elif node.kind == tar.SYMLINK:
            place.size = len(_bytes(node.target))
        if node.kind != tar.FILE:
            tail = place.size % BLOCK_BYTES
            place.block, place.inline = block, tail if _INODE.size + tail <= BLOCK_BYTES else 0
        if self._end % BLOCK_BYTES + _INODE.size + place.inline > BLOCK_BYTES:  # an inode and the data behind it are in one block
            self._end = _blocks(self._end) * BLOCK_BYTES
        place.number = self._end // _SLOT_BYTES
        self._end += -(-(_INODE.size + place.inline) // _SLOT_BYTES) * _SLOT_BYTES
        return place

    def _write(self, node: Node, number: int, folders: int, parent: Node) -> None:
        place, data = self._places[id(node)], b""
        if node.is_folder:
            data = b"".join(self._folder(node, names, parent) for names in place.names)[: place.size]
        elif node.kind == tar.SYMLINK:
            data = _bytes(node.target)
        at, whole = place.number * _SLOT_BYTES, len(data) - place.inline
        seconds, nanoseconds = divmod(node.mtime_ns, 10**9)
        _INODE.pack_into(
            self.inodes,
            at,
            *(_EXTENDED | (_INLINE if place.inline else _PLAIN), 0, _MODES[node.kind] | node.mode, 0, place.size),
            *(place.block, number, node.uid, node.gid, seconds, nanoseconds, 2 + folders if node.is_folder else place.links),
        )
        if data:
            start = (place.block - self._first_block) * BLOCK_BYTES
            self.blocks[start : start + whole] = data[:whole]
            self.inodes[at + _INODE.size : at + _INODE.size + place.inline] = data[whole:]

    def _folder(self, node: Node, names: list[bytes], parent: Node) -> bytes:
        """Return one block of a folder."""
        entries, start = [], _ENTRY.size * len(names)
        for name in names:
            child = {b".": node, b"..": parent}.get(name) or node.children[name.decode("utf-8", "surrogateescape")]
            entries.append(_ENTRY.pack(self.number_of(child), start, _TYPES[child.kind], 0))
            start += len(name)
        return b"".join((*entries, *names)).ljust(BLOCK_BYTES, b"\0")


def _names(folder: Node) -> list[list[bytes]]:
    """Return the sorted names of a folder, in lists that fit into a block each."""
    blocks: list[list[bytes]] = []
    left = 0
    for name in sorted((b".", b"..", *(_bytes(name) for name in folder.children))):
        size = _ENTRY.size + len(name)
        if size > left:
            blocks.append([])
            left = BLOCK_BYTES
        blocks[-1].append(name)
        left -= size
    return blocks


def unreadable_folders(files: Files) -> Iterator[str]:
    """Yield the paths of folders that gVisor 20240729 cannot list, because their names are long.

    gVisor takes the rest of each block but the last one as part of the last name in the block, and refuses names of more than 255 bytes. EROFS has no
    place for the rest elsewhere. Later versions of gVisor can list these folders.
    """
    for path, node in files.walk():
        for names in _names(node)[:-1] if node.is_folder else ():
            if BLOCK_BYTES - sum(_ENTRY.size + len(name) for name in names[:-1]) - _ENTRY.size > _NAME_BYTES:
                yield path
                break


def _blocks(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
