"""Makes the EROFS image of a root file system on the host: one file and its index, from a tree that Sandlot has built itself.

The kernel of gVisor reads the image. Layers of strangers are never unpacked on the host: :mod:`sandlot.builds.merged_root_images` makes images of the
same format from layers, in a sandbox.

Two images of one tree are equal byte for byte. Files keep their times (``--mkfs-time``), because byte code contains the time of its source. gVisor
supports no compression and no data within inodes (``-Enoinline_data``).
"""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from pathlib import Path

from sandlot.host.image_index import write_index
from sandlot.host.locked_folder import remove_tree
from sandlot.images import command_lines, tree
from sandlot.images.command import CommandRunner
from sandlot.images.interpreter import loader_of

IMAGE, INDEX = "root.erofs", "root.index"
"""Names of both files in the folder of an image."""
BASE = "base.erofs"
"""Name of the image of another root file system, in the root of an image that has one."""
_MKFS = "usr/bin/mkfs.erofs"
_UUID_AT = 1024 + 48


def build_erofs_image(root: Path, digest: str, folder: Path, builder: Path, runner: CommandRunner, base: Path | None = None) -> None:
    """Make the EROFS image of a root file system that is a folder.

    gVisor compares the UUID of the image when it restores a snapshot. The UUID depends on all that decides the layout of the image: the digest, and
    the index, because the times of folders are not part of the digest of a tree.

    Args:
        root: The folder. It was built on this host, and is not written to.
        digest: Digest of the image (:func:`image_digest`).
        folder: Folder for the image and its index, on the file system of the tree. Its parent gets a temporary copy of the tree, which consists of
            hard links.
        builder: Tree of Debian 13 with the package erofs-utils. The version of Debian 12 lacks ``--mkfs-time``.
        runner: Runs mkfs.erofs.
        base: Image of another root file system, which becomes a file of this one (:data:`BASE`). None: it gets none.

    Raises:
        HostError: mkfs.erofs failed.
    """
    copy = folder.with_name(f"{folder.name}.tree")
    try:
        tree.link_tree(root, copy)
        _keep_tmp_on_disk(copy / "tmp")
        if base is not None:
            (copy / BASE).hardlink_to(base)
        os.utime(copy, (command_lines.BUILD_TIME_S, command_lines.BUILD_TIME_S))
        with (folder / INDEX).open("xb") as file:
            write_index(file, list_folders(copy))
        layout = hashlib.sha256(digest.encode() + (folder / INDEX).read_bytes()).hexdigest()
        loader, libraries = loader_of(builder)
        program = command_lines.own_program_argv(builder, loader, libraries, Path(_MKFS))
        argv = command_lines.mkfs_erofs_argv(program, copy, folder / IMAGE, uuid_of(layout))
        runner.run("making the image of the root file system", argv, env={})
        os.utime(folder / IMAGE, (command_lines.BUILD_TIME_S, command_lines.BUILD_TIME_S))  # another image can contain this one
    finally:
        remove_tree(copy)


def image_digest(root: str, builder: str) -> str:
    """Return the digest of the image of a root file system.

    Args:
        root: Digest of the folder.
        builder: Digest of the image with mkfs.erofs, whose version decides the layout.
    """
    return hashlib.sha256(f"{root}\0{builder}".encode()).hexdigest()


def uuid_of(digest: str) -> uuid.UUID:
    """Return a UUID that depends on a digest only."""
    return uuid.UUID(bytes=hashlib.sha256(digest.encode()).digest()[:16])


def read_uuid(image: Path) -> uuid.UUID:
    """Return the UUID of an image that the service has made."""
    with image.open("rb") as file:
        return uuid.UUID(bytes=os.pread(file.fileno(), 16, _UUID_AT))


def list_folders(root: Path) -> dict[bytes, dict[bytes, int]]:
    """Return the name and the modification time in nanoseconds of all entries of a tree, by the path of their folder in the tree."""
    folders: dict[bytes, dict[bytes, int]] = {b"/": {}}
    for path, status in tree.walk(root):
        inside = b"/" + path.encode(errors="surrogateescape")
        above, _, name = inside.rpartition(b"/")
        folders[above or b"/"][name] = status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            folders[inside] = {}
    return folders


def _keep_tmp_on_disk(tmp: Path) -> None:
    """Create a folder in an empty ``/tmp`` that exists on most Linux hosts: runsc would mount a tmpfs over an empty ``/tmp``."""
    if tmp.is_symlink() or not tmp.is_dir() or next(tmp.iterdir(), None) is not None:
        return
    status, folder = tmp.stat(), tmp / ".X11-unix"
    folder.mkdir()
    folder.chmod(0o1777)
    os.utime(folder, (command_lines.BUILD_TIME_S, command_lines.BUILD_TIME_S))
    os.utime(tmp, ns=(status.st_mtime_ns, status.st_mtime_ns))
