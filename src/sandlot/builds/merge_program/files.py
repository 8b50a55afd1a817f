"""The file system that layers give together: a tree of nodes, to which one layer after another is applied.

Follows the OCI image specification 1.1: the whiteouts of a layer hide only entries of lower layers, whatever their place in the archive.

Invariants:
- An entry is placed in folders only. An entry whose path leads through a symbolic link or another file is refused.
- Nodes of folders have one parent. Nodes of other files have several parents if they have several hard links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sandlot.builds.merge_program.layers import DEVICE, Blob, Entry, RefusedError
from sandlot.protocol import tar

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_RESERVED = ".wh..wh."
"""Prefix of names that AUFS used for its own purposes. No program creates files from such entries."""
MAX_LINKS = 40
"""Largest number of symbolic links on one path, as in Linux."""


class Node:
    """A file, folder, symbolic link or pipe.

    Args:
        kind: ``FILE``, ``FOLDER`` or ``SYMLINK`` of ``protocol.tar``, or ``PIPE``.
        mode: Permission bits.
        uid: User id.
        gid: Group id.
        mtime_ns: Time of the last change in nanoseconds since 1970.
        target: Target of a symbolic link.
        attributes: Name -> value of extended attributes.

    Attributes:
        children: Name -> node, of a folder.
        source: Number of the layer and position in its archive that a file has its content from; None: :attr:`content`.
        block: First block of the content of a file in the image; None: it is not written yet.
        size: Size of a file.
        content: Content of a file, as far as it is in memory.
        path: File of the sandbox with the content; empty for none.
    """

    __slots__ = ("attributes", "block", "children", "content", "gid", "kind", "mode", "mtime_ns", "path", "size", "source", "target", "uid")

    def __init__(
        self, kind: str, mode: int, uid: int, gid: int, mtime_ns: int, *, target: str = "", attributes: dict[bytes, bytes] | None = None
    ) -> None:
        self.kind = kind
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        self.target = target
        self.attributes = attributes
        self.children: dict[str, Node] = {}
        self.source: tuple[int, int] | None = None
        self.block: int | None = None
        self.size = 0
        self.content: bytes | None = None
        self.path = ""

    @property
    def is_folder(self) -> bool:
        """True for a folder."""
        return self.kind == tar.FOLDER


class Files:
    """The file system.

    Args:
        time_ns: Time of folders that no layer has, in nanoseconds since 1970.
        warn: Function that is called with what was left out.
    """

    def __init__(self, time_ns: int, warn: Callable[[str], object]) -> None:
        self._time_ns = time_ns
        self._warn = warn
        self.root = self.new_folder()

    def new_folder(self, mode: int = 0o755, owner: int = 0) -> Node:
        """Return a new empty folder."""
        return Node(tar.FOLDER, mode, owner, owner, self._time_ns)

    def apply(self, number: int, blob: Blob, entries: Iterable[Entry]) -> None:
        """Apply a layer.

        Args:
            number: Number of the layer, from 0.
            blob: The layer, for errors.
            entries: Entries of the layer. All are read before the first is applied.
        """
        kept: list[tuple[list[str], Entry]] = []
        whiteouts: list[tuple[list[str], Entry]] = []
        for entry in entries:
            try:
                names = tar.parts("" if entry.name == "/" else entry.name)
            except tar.TarError as error:
                raise RefusedError(error.message.rstrip("."), blob.digest, entry.name) from None
            if names and names[-1] == OPAQUE:
                whiteouts.append((names, entry))
            elif any(name.startswith(_RESERVED) for name in names):
                continue
            elif names and names[-1].startswith(WHITEOUT):
                whiteouts.append((names, entry))
            else:
                kept.append((names, entry))
        for names, entry in whiteouts:
            self._hide(names, entry, blob)
        for names, entry in kept:
            self._place(number, names, entry, blob)

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Yield the path of each node without a slash at its beginning, and the node. Folders precede their content; the root is ``""``."""
        pending = [("", self.root)]
        while pending:
            path, node = pending.pop()
            yield path, node
            below = f"{path}/" if path else ""
            pending.extend((f"{below}{name}", node.children[name]) for name in sorted(node.children, reverse=True))

    def resolve(self, path: str, *, links: int = MAX_LINKS) -> tuple[Node, str, Node | None]:
        """Follow a path through symbolic links, inside of this file system.

        Returns:
            Folder and name to which the path leads, and the node there; None if there is none. If a part of the path is no folder, the folder and
            name are those of this part, and the node is None.
        """
        stack, pending = [self.root], [name for name in reversed(path.split("/")) if name not in {"", "."}]
        name = ""
        while pending:
            name = pending.pop()
            if name == "..":
                stack = stack[:-1] or [self.root]
                continue
            child = stack[-1].children.get(name)
            if child is not None and child.kind == tar.SYMLINK and links:
                links -= 1
                if child.target.startswith("/"):
                    stack = [self.root]
                pending.extend(part for part in reversed(child.target.split("/")) if part not in {"", "."})
            elif not pending:
                return stack[-1], name, child
            elif child is None or not child.is_folder:
                return stack[-1], name, None
            else:
                stack.append(child)
        return (stack[-2], name, stack[-1]) if len(stack) > 1 else (self.root, "", self.root)

    def _hide(self, names: list[str], entry: Entry, blob: Blob) -> None:
        folder = self._find_folder(names[:-1], entry, blob)
        if names[-1] == OPAQUE:
            if folder is not None:
                folder.children.clear()
            return
        name = names[-1].removeprefix(WHITEOUT)
        if name in {"", ".", ".."}:
            raise RefusedError(f"its entry {tar.shown(entry.name)} hides no file", blob.digest, entry.name)
        if folder is not None:
            folder.children.pop(name, None)

    def _place(self, number: int, names: list[str], entry: Entry, blob: Blob) -> None:
        if not names:
            if entry.kind != tar.FOLDER:
                raise RefusedError(f"its entry {tar.shown(entry.name)} would replace the root of the file system", blob.digest, entry.name)
            _describe(self.root, entry)
            return
        folder = self._find_folder(names[:-1], entry, blob, create=True)
        assert folder is not None  # noqa: S101 - it was created
        name, present = names[-1], folder.children.get(names[-1])
        if entry.kind == tar.HARDLINK:
            folder.children[name] = self._find_target(entry, blob)
        elif entry.kind == DEVICE:
            folder.children.pop(name, None)
            self._warn(f"left out the device {tar.shown(entry.name)} of the layer {blob.digest}")
        elif entry.kind == tar.FOLDER and present is not None and present.is_folder:
            _describe(present, entry)
        else:
            node = folder.children[name] = Node(entry.kind, 0, 0, 0, 0, target=entry.target)
            _describe(node, entry)
            if entry.kind == tar.SYMLINK and not _is_target(entry.target):
                raise RefusedError(f"its symbolic link {tar.shown(entry.name)} has an invalid target", blob.digest, entry.name)
            if entry.kind == tar.FILE:
                node.size, node.content = entry.size, entry.content if entry.size else b""
                node.source = None if node.content is not None else (number, entry.offset)

    def _find_target(self, entry: Entry, blob: Blob) -> Node:
        problem = "is not valid"
        try:
            names = tar.parts(entry.target)
        except tar.TarError as error:
            problem = "leads out of the image" if ".." in entry.target.split("/") or entry.target.startswith("/") else str(error)
            names = []
        if names:
            folder = self._find_folder(names[:-1], entry, blob)
            target = None if folder is None else folder.children.get(names[-1])
            if target is not None and not target.is_folder:
                return target
            problem = "does not exist" if target is None else "is a folder"
        raise RefusedError(f"the target {tar.shown(entry.target)} of its hard link {tar.shown(entry.name)} {problem}", blob.digest, entry.name)

    def _find_folder(self, names: list[str], entry: Entry, blob: Blob, *, create: bool = False) -> Node | None:
        node = self.root
        for name in names:
            child = node.children.get(name)
            if child is None:
                if not create:
                    return None
                child = node.children[name] = self.new_folder()
            elif not child.is_folder:
                what = "the symbolic link" if child.kind == tar.SYMLINK else "the file"
                raise RefusedError(f"the path of its entry {tar.shown(entry.name)} leads through {what} {tar.shown(name)}", blob.digest, entry.name)
            node = child
        return node


def _is_target(text: str) -> bool:
    return 0 < len(text.encode("utf-8", "surrogateescape")) <= tar.PATH_BYTES and "\0" not in text


def _describe(node: Node, entry: Entry) -> None:
    node.mode, node.uid, node.gid, node.mtime_ns = entry.mode, entry.uid, entry.gid, entry.mtime_ns
    node.attributes = entry.attributes or None
