"""File system of a scripted guest: a table of paths in memory, with the errors of a real file system.

Each entry has only the properties that the guest's file calls can show: kind, content, mode, owner, modification time and link target. The accounts
are ``root`` (uid 0) and ``user`` (uid 1000).
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

ROOT_UID, USER_UID = 0, 1000
_MAX_LINKS = 40
"""Largest number of symbolic links in one path, as in Linux."""
_FOLDERS = {"/": ROOT_UID, "/bin": ROOT_UID, "/etc": ROOT_UID, "/home": ROOT_UID, "/home/user": USER_UID, "/opt": ROOT_UID, "/root": ROOT_UID}
_FILES = {"/bin/bash": 0o755, "/bin/python3": 0o755, "/bin/sh": 0o755, "/etc/passwd": 0o644, "/etc/shadow": 0o600}
_STICKY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - paths inside a sandbox


class FileError(Exception):
    """Raised by a file operation that fails.

    Attributes:
        code: Error code of the link protocol.
        message: Description of the failure, for people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class Node:
    """One file, folder or symbolic link."""

    kind: str
    uid: int
    mode: int
    modified_ns: int
    data: bytes = b""
    target: str | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class MemoryFiles:
    """A tree of files.

    Args:
        now_ns: Function that returns the present time in nanoseconds since 1970, UTC.

    Attributes:
        capacity_bytes: Largest number of bytes in all files together; None: no limit. A write that would exceed this number fails with ``disk_full``.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._nodes: dict[str, Node] = {}
        self.capacity_bytes: int | None = None
        for path, uid in _FOLDERS.items():
            self._nodes[path] = Node("directory", uid, 0o700 if path == "/root" else 0o755, now_ns())
        for path in _STICKY:
            for parent in (posixpath.dirname(path), path):
                self._nodes.setdefault(parent, Node("directory", ROOT_UID, 0o755, now_ns()))
            self._nodes[path].mode = 0o1777
        for path, mode in _FILES.items():
            self._nodes[path] = Node("file", ROOT_UID, mode, now_ns(), b"#\n")

    def copy(self) -> MemoryFiles:
        """Return an independent copy of the file tree, for a snapshot."""
        other = copy.copy(self)
        vars(other)["_nodes"] = copy.deepcopy(self._nodes)
        return other

    def read(self, path: str, uid: int) -> bytes:
        """Return the content of a regular file."""
        path, node = self._find(path, uid)
        if node.kind != "file":
            raise FileError("path_is_directory", f"{path!r} is a folder.")
        self._check(path, node, uid, 4)
        return node.data

    def write(self, path: str, data: bytes, uid: int, *, mode: int | None = None, parents: bool = True, append: bool = False) -> None:
        """Write a regular file: create the file, replace its content or, if ``append`` is True, append to its content."""
        self.check_write(path, uid, parents=parents)
        path = self._resolve(path)
        node = self._nodes.get(path) or Node("file", uid, 0o644, self._now_ns())
        content = (node.data if append else b"") + data
        if self.capacity_bytes is not None and self._size_bytes() - len(node.data) + len(content) > self.capacity_bytes:
            raise FileError("disk_full", "The disk of the sandbox is full.")
        node.data, node.modified_ns = content, self._now_ns()
        if mode is not None:
            node.mode = mode & 0o7777
        self._nodes[path] = node

    def check_write(self, path: str, uid: int, *, parents: bool) -> None:
        """Check that a file can be written, before its content is known. If ``parents`` is True, create the missing folders above the file.

        Raises:
            FileError: The path is a folder, a folder above the path is missing, or the account has no permission to write the file.
        """
        if path.endswith("/"):
            raise FileError("path_is_directory", f"{path!r} is a folder.")
        path = self._resolve(path)
        earlier = self._nodes.get(path)
        if earlier is None:
            self._parent(path, uid, make=parents)
        elif earlier.kind != "file":
            raise FileError("path_is_directory", f"{path!r} is a folder.")
        else:
            self._check(path, earlier, uid, 2)

    def check_room(self, size: int) -> None:
        """Check that ``size`` further bytes fit on the disk.

        Raises:
            FileError: The disk would be full.
        """
        if self.capacity_bytes is not None and self._size_bytes() + size > self.capacity_bytes:
            raise FileError("disk_full", "The disk of the sandbox is full.")

    def chown(self, path: str, uid: int) -> None:
        """Change the owner of a file or folder."""
        self._find(path, ROOT_UID)[1].uid = uid

    def set_attributes(self, path: str, attributes: dict[str, str]) -> None:
        """Replace the extended attributes of a file."""
        self._find(path, ROOT_UID)[1].attributes = attributes

    def resolve(self, path: str, uid: int) -> dict[str, Any]:
        """Return the properties of the file to which a path leads, with its path without links."""
        return self.stat(self._find(path, uid)[0], uid)

    def stat(self, path: str, uid: int, *, follow: bool = True, attributes: str | None = None) -> dict[str, Any]:
        """Return the properties of the file, folder or link at a path, as the guest's call ``file.stat`` returns them."""
        resolved, node = self._find(path, uid, follow=follow)
        shown = path.rstrip("/") or "/"
        size = len(node.target or "") if node.kind == "symlink" else len(node.data)
        return {
            "name": posixpath.basename(shown) or "/",
            "path": shown if resolved != "/" else "/",
            "kind": node.kind,
            "size": size,
            "mode": node.mode,
            "uid": node.uid,
            "gid": node.uid,
            "modified_ns": node.modified_ns,
            "target": node.target,
            "attributes": None
            if attributes is None or node.kind == "symlink"
            else {name: value for name, value in node.attributes.items() if name.startswith(attributes)},
        }

    def list(self, path: str, uid: int, attributes: str | None = None) -> list[dict[str, Any]]:
        """Return the properties of all entries of a folder, sorted by name."""
        resolved, node = self._find(path, uid)
        if node.kind != "directory":
            raise FileError("path_not_directory", f"{path!r} is not a folder.")
        self._check(path, node, uid, 4)
        names = sorted(posixpath.basename(each) for each in self._nodes if each != "/" and posixpath.dirname(each) == resolved)
        return [self.stat(posixpath.join(path, name), uid, follow=False, attributes=attributes) for name in names]

    def mkdir(self, path: str, uid: int, *, parents: bool = True, mode: int | None = None) -> None:
        """Create a folder. If ``parents`` is True, also create missing folders above the new folder, and accept a folder that exists already."""
        path = self._resolve(path)
        earlier = self._nodes.get(path)
        if earlier is not None:
            if earlier.kind == "directory" and parents:
                return
            raise FileError("path_exists", f"{path!r} exists already.")
        self._parent(path, uid, make=parents)
        self._nodes[path] = Node("directory", uid, 0o755 if mode is None else mode & 0o7777, self._now_ns())

    def symlink(self, path: str, target: str, uid: int) -> None:
        """Create a symbolic link at ``path`` that points to ``target``."""
        self._parent(path, uid, make=False)
        self._nodes[path] = Node("symlink", uid, 0o777, self._now_ns(), target=target)

    def link(self, path: str, to: str, uid: int) -> None:
        """Create a hard link at ``to`` to the file at ``path``."""
        node = self._find(path, uid)[1]
        self._parent(to, uid, make=False)
        self._nodes[to] = node

    def move(self, path: str, to: str, uid: int, *, overwrite: bool = False) -> None:
        """Rename a file, or a folder with all its content. If ``overwrite`` is True, a file at ``to`` is replaced."""
        path, _ = self._find(path, uid, follow=False)
        self._parent(path, uid, make=False)
        to = posixpath.normpath(to)
        if to in self._nodes and not overwrite:
            raise FileError("path_exists", f"{to!r} exists already.")
        if to.startswith(f"{path}/"):
            raise FileError("invalid_request", f"{path!r} cannot be moved into itself.")
        self._parent(to, uid, make=False)
        for each in list(self._below(path)):
            self._nodes[to + each[len(path) :]] = self._nodes.pop(each)

    def remove(self, path: str, uid: int, *, recursive: bool = False) -> int:
        """Remove a file or a folder, and return the number of removed entries. A folder that is not empty needs ``recursive=True``."""
        path, node = self._find(path, uid, follow=False)
        self._parent(path, uid, make=False)
        below = list(self._below(path))
        if node.kind == "directory" and len(below) > 1 and not recursive:
            raise FileError("path_not_empty", f"The folder {path!r} is not empty.")
        for each in below:
            del self._nodes[each]
        return len(below)

    def chmod(self, path: str, mode: int, uid: int) -> None:
        """Change the mode of a file or folder."""
        self._find(path, uid)[1].mode = mode & 0o7777

    def is_folder(self, path: str) -> bool:
        """Return whether there is a folder at a path."""
        node = self._nodes.get(self._resolve(path))
        return node is not None and node.kind == "directory"

    def exists(self, path: str) -> bool:
        """Return whether there is anything at a path."""
        return self._resolve(path) in self._nodes

    def _size_bytes(self) -> int:
        return sum(len(node.data) for node in {id(node): node for node in self._nodes.values()}.values())

    def _below(self, path: str) -> Iterator[str]:
        return (each for each in sorted(self._nodes) if each == path or each.startswith(path.rstrip("/") + "/"))

    def _find(self, path: str, uid: int, *, follow: bool = True) -> tuple[str, Node]:
        resolved = self._resolve(path, follow=follow)
        folder = self._nodes.get(posixpath.dirname(resolved))
        if folder is not None and resolved != "/":
            self._check(path, folder, uid, 1)
        node = self._nodes.get(resolved)
        if node is None:
            raise FileError("path_not_found", f"{path!r} does not exist.")
        return resolved, node

    def _resolve(self, path: str, *, follow: bool = True) -> str:
        """Replace the symbolic links in a path by their targets. A link in the last part is replaced only if ``follow`` is True."""
        resolved, parts, links = "/", [part for part in posixpath.normpath(path).split("/") if part], 0
        while parts:
            inner = posixpath.join(resolved, parts.pop(0))
            node = self._nodes.get(inner)
            if node is not None and node.target is not None and (parts or follow):
                links += 1
                if links > _MAX_LINKS:
                    raise FileError("path_link_loop", f"{path!r} leads through more than {_MAX_LINKS} symbolic links.")
                parts = [part for part in posixpath.normpath(posixpath.join(resolved, node.target)).split("/") if part] + parts
                resolved = "/"
            else:
                if parts and node is not None and node.kind == "file":
                    raise FileError("path_not_directory", f"{inner!r} is not a folder.")
                resolved = inner
        return resolved

    def _parent(self, path: str, uid: int, *, make: bool) -> None:
        folder = posixpath.dirname(path)
        node = self._nodes.get(folder)
        if node is None:
            if not make:
                raise FileError("path_not_found", f"There is no folder {folder!r}.")
            self._parent(folder, uid, make=True)
            self._nodes[folder] = Node("directory", uid, 0o755, self._now_ns())
        elif node.kind != "directory":
            raise FileError("path_not_directory", f"{folder!r} is not a folder.")
        else:
            self._check(path, node, uid, 2)

    def _check(self, path: str, node: Node, uid: int, wanted: int) -> None:
        """Check that an account has a permission for a file or folder.

        Args:
            path: Path that the error message shows.
            node: File or folder.
            uid: User id of the account.
            wanted: Permission bit: 4 read, 2 write, 1 search.

        Raises:
            FileError: The account does not have the permission.
        """
        granted = (node.mode >> 6 if node.uid == uid else node.mode) & 7
        if uid != ROOT_UID and not granted & wanted:
            raise FileError("permission_denied", f"The user with the uid {uid} has no permission for {path!r}.")
