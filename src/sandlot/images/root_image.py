"""Images of root file systems: one EROFS file and its index, made from a tree that Sandlot has built itself.

The kernel of gVisor reads the image. Layers of strangers are never unpacked on the host: their images are made in a sandbox, in the same format.

Two images of equal trees are equal byte for byte. Files keep their times (``--mkfs-time``), because byte code contains the time of its source. gVisor
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
from sandlot.images import plan, tree
from sandlot.images.command import CommandRunner
from sandlot.images.interpreter import loader_of
from sandlot.model.specs import RootFs

IMAGE, INDEX = "root.erofs", "root.index"
"""Names of both files in the folder of an image."""
_MKFS = "usr/bin/mkfs.erofs"


def build_root_image(root: RootFs, folder: Path, builder: Path, runner: CommandRunner) -> RootFs:
    """Make an image of a root file system that is a folder, and return the root file system that is this image.

    Args:
        root: The folder. It was built on this host, and is not written to.
        folder: Empty folder for both files, on the file system of the tree. Its parent gets a temporary copy of the tree, which consists of hard
            links.
        builder: Tree of Debian 13 with the package erofs-utils. The version of Debian 12 lacks ``--mkfs-time``.
        runner: Runs mkfs.erofs.

    Raises:
        HostError: mkfs.erofs failed.
    """
    image, index, copy = folder / IMAGE, folder / INDEX, folder.with_name(f"{folder.name}.tree")
    try:
        tree.link_tree(root.require_tree(), copy)
        _keep_tmp_on_disk(copy / "tmp")
        os.utime(copy, ns=(plan.BUILD_TIME_S * 10**9,) * 2)
        loader, libraries = loader_of(builder)
        runner.run(
            "making the image of the root file system",
            plan.mkfs_erofs_argv(plan.own_program_argv(builder, loader, libraries, Path(_MKFS)), copy, image, uuid_of(root.digest)),
            env={},
        )
        with index.open("xb") as file:
            write_index(file, list_folders(copy))
    finally:
        remove_tree(copy)
    with image.open("rb") as content:
        return RootFs(hashlib.file_digest(content, "sha256").hexdigest(), image=image, index=index)


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


def uuid_of(digest: str) -> uuid.UUID:
    """Return the UUID of the image of a root file system. gVisor compares it when it restores a snapshot.

    Args:
        digest: Digest of the folder.
    """
    return uuid.UUID(bytes=hashlib.sha256(digest.encode()).digest()[:16])


def _keep_tmp_on_disk(tmp: Path) -> None:
    """Create a folder in an empty ``/tmp`` that exists on most Linux hosts: runsc would mount a tmpfs over an empty ``/tmp``."""
    if tmp.is_symlink() or not tmp.is_dir() or next(tmp.iterdir(), None) is not None:
        return
    status, folder = tmp.stat(), tmp / ".X11-unix"
    folder.mkdir()
    folder.chmod(0o1777)
    os.utime(folder, (plan.BUILD_TIME_S, plan.BUILD_TIME_S))
    os.utime(tmp, ns=(status.st_mtime_ns, status.st_mtime_ns))
