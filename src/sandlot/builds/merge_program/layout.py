"""Adds to a file system what every sandbox needs: folders, the user, ``sudo``, the names of hosts, and the guest.

Images may be odd: without ``/etc/passwd``, without a shell, with files or dangling links in place of folders. Accounts that exist are kept.

:func:`sandlot.images.rootfs_layout.apply_layout` does the same to folders of built-in templates on the host. The merge program runs alone in a
sandbox and cannot import it. ``test_layout.py`` compares both.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.builds.merge_program.files import Files, Node
from sandlot.builds.merge_program.layers import CAPTURE_BYTES
from sandlot.protocol import tar

_MOUNTS = ("/dev", "/proc", "/sys")
"""Folders that are empty in every image, because the kernel mounts file systems there."""
_TMP = "/tmp"  # noqa: S108 - inside the image
_IN_TMP = ".X11-unix"
_REMOVED = ("/.dockerenv", "/etc/resolv.conf")
_NAME = "user"
ATTRIBUTES = "attributes.json"
"""Name of the file of the guest with extended attributes (``guest/fs/attributes.py``)."""
MAX_COPIED_BYTES = 1 << 20
"""Largest size of a file whose extended attributes are kept."""


@dataclass(frozen=True)
class Layout:
    """Files and accounts that every sandbox needs.

    Args:
        folders: Mode, and id of owner and group, by path.
        files: Text of files that replace those of the image, by path. Files that begin with ``#!`` become executable.
        home: Home of the user, which is one of the folders.
        user: User id and group id of the user.
        guest: Folder of this sandbox with the guest, which is copied to the same path.
        time_ns: Time of everything that is added, in nanoseconds since 1970.
    """

    folders: Mapping[str, tuple[int, int]]
    files: Mapping[str, str]
    home: str
    user: int
    guest: str
    time_ns: int


def apply_layout(files: Files, layout: Layout, warn: Callable[[str], object], guest: Node | None = None) -> None:
    """Add a layout to a file system.

    Args:
        files: The file system.
        layout: The layout.
        warn: Function that is called with what was left out.
        guest: Folder with the guest. None: a copy of :attr:`Layout.guest`.
    """
    for path in (*_MOUNTS, _TMP):
        node = files.root.children.get(path[1:])
        if node is None or not node.is_folder or path != _TMP:
            files.root.children[path[1:]] = files.new_folder()
    for path, (mode, owner) in layout.folders.items():
        _make_folder(files, path, mode, owner)
    tmp = files.root.children[_TMP[1:]]
    if not tmp.children:  # gVisor would mount a file system in memory there
        tmp.children[_IN_TMP] = files.new_folder(0o1777)
    for path in _REMOVED:
        folder, _, name = path.rpartition("/")
        _, _, parent = files.resolve(folder)
        if parent is not None and parent.is_folder:
            parent.children.pop(name, None)
    _add_accounts(files, layout, warn)
    _copy_skeleton(files, layout)
    for path, text in layout.files.items():
        folder, _, name = path.rpartition("/")
        _make_folder(files, folder).children[name] = _new_file(layout, text.encode(), 0o755 if text.startswith("#!") else 0o644)
    guest = files.root.children[layout.guest.strip("/")] = guest or _copy_guest(files, Path(layout.guest))
    if attributes := list_attributes(files, warn):
        guest.children[ATTRIBUTES] = _new_file(layout, json.dumps(attributes, separators=(",", ":")).encode(), 0o600)


def list_attributes(files: Files, warn: Callable[[str], object]) -> list[tuple[str, str, str]]:
    """Return the path, name and hexadecimal value of all extended attributes that the guest sets when it boots.

    Setting an attribute copies the file, so files that are large or have several hard links keep none. gVisor has attributes of users only.
    """
    first: dict[int, bool] = {}
    for _, node in files.walk():
        if node.attributes:
            first[id(node)] = id(node) not in first  # False: several hard links
    found, left_out = [], 0
    for path, node in files.walk():
        for name, value in sorted((node.attributes or {}).items()):
            if name.startswith(b"user.") and first[id(node)] and node.size <= MAX_COPIED_BYTES and node.kind in {tar.FILE, tar.FOLDER}:
                found.append((f"/{path}", name.decode("utf-8", "surrogateescape"), value.hex()))
            else:
                left_out += 1
    if left_out:
        warn(f"left out {left_out} extended attributes that sandboxes do not support, such as file capabilities")
    return found


def _make_folder(files: Files, path: str, mode: int | None = None, owner: int = 0) -> Node:
    """Return the folder of a path. Create missing folders; replace dangling links and files in its place.

    An existing folder keeps its mode and owner, unless it belongs to the user or everyone may write to it.
    """
    current, names = "", [name for name in path.split("/") if name]
    node = files.root
    for number, name in enumerate(names, 1):
        current += f"/{name}"
        found = files.resolve(current)[2]
        is_new = found is None or not found.is_folder
        if found is None or not found.is_folder:
            found = node.children[name] = files.new_folder()
        node = found
        if number == len(names) and mode is not None and (is_new or owner or mode & stat.S_IWOTH):
            node.mode, node.uid, node.gid = mode, owner, owner
    return node


def _add_accounts(files: Files, layout: Layout, warn: Callable[[str], object]) -> None:
    shell = "/bin/bash" if files.resolve("/bin/bash")[2] is not None else "/bin/sh"
    number = layout.user
    has_user = _add_lines(
        files,
        layout,
        "/etc/passwd",
        (("root", 0, "root:x:0:0:root:/root:/bin/sh"), (_NAME, number, f"{_NAME}:x:{number}:{number}::{layout.home}:{shell}")),
        warn,
    )
    _add_lines(files, layout, "/etc/group", (("root", 0, "root:x:0:"), (_NAME, number, f"{_NAME}:x:{number}:")), warn)
    if has_user and files.resolve("/etc/shadow")[2] is not None:
        _add_lines(files, layout, "/etc/shadow", ((_NAME, None, f"{_NAME}:*:19000:0:99999:7:::"),), warn)


def _add_lines(files: Files, layout: Layout, path: str, lines: tuple[tuple[str, int | None, str], ...], warn: Callable[[str], object]) -> bool:
    """Add accounts to a table unless it has their name or id. Return True if the last account was added."""
    folder, name, node = files.resolve(path)
    if node is None:
        folder, _, name = _make_folder(files, path.rpartition("/")[0]), "", path.rpartition("/")[2]
    elif node.kind != tar.FILE or node.content is None or len(node.content) > CAPTURE_BYTES:
        warn(f"did not add accounts to {path}, which is no file or is too large")
        return False
    text = b"" if node is None or node.content is None else node.content
    added = False
    for account, number, line in lines:
        rows = [row.split(b":") for row in text.split(b"\n")]
        ids = set() if number is None else {row[2].strip() for row in rows if len(row) > 2}  # noqa: PLR2004 - name, password, id
        added = account.encode() not in {row[0] for row in rows} and str(number).encode() not in ids
        if added:
            text += (b"" if not text or text.endswith(b"\n") else b"\n") + line.encode() + b"\n"
    if node is None or text != node.content:
        new = _new_file(layout, text, 0o644)
        if node is not None:
            new.mode, new.uid, new.gid, new.attributes = node.mode, node.uid, node.gid, node.attributes
        folder.children[name] = new
    return added


def _copy_skeleton(files: Files, layout: Layout) -> None:
    skeleton, home = files.resolve("/etc/skel")[2], files.resolve(layout.home)[2]
    if skeleton is None or home is None:
        return
    for name, node in skeleton.children.items():
        if node.kind == tar.FILE and node.content is not None and name not in home.children:
            home.children[name] = _new_file(layout, node.content, 0o644, layout.user)


def _copy_guest(files: Files, folder: Path) -> Node:
    """Return a node with the guest of this sandbox, which belongs to root."""
    node = _new_like(files, folder)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            path = Path(entry.path)
            node.children[entry.name] = _copy_guest(files, path) if entry.is_dir(follow_symlinks=False) else _new_like(files, path)
    return node


def _new_like(files: Files, path: Path) -> Node:
    status = path.lstat()
    if stat.S_ISDIR(status.st_mode):
        return files.new_folder(stat.S_IMODE(status.st_mode))  # the time of a mount point is that of this sandbox
    if stat.S_ISLNK(status.st_mode):
        return Node(tar.SYMLINK, 0o777, 0, 0, status.st_mtime_ns, target=str(path.readlink()))
    node = Node(tar.FILE, stat.S_IMODE(status.st_mode), 0, 0, status.st_mtime_ns)
    node.path, node.size = str(path), status.st_size
    return node


def _new_file(layout: Layout, content: bytes, mode: int, owner: int = 0) -> Node:
    node = Node(tar.FILE, mode, owner, owner, layout.time_ns)
    node.content, node.size = content, len(content)
    return node
