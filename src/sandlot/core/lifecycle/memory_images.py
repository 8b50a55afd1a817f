"""Folders of hibernation images and snapshot images below the data directory: one folder for each hibernated sandbox or snapshot.

A folder contains ``image``, which a driver writes, and ``files.overlay``, the changed files. This module does not check that a folder is complete:
drivers give an image its name only when the image is complete, and the records in the store tell which images must exist.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sandlot.host import durable

IMAGE = "image"
OVERLAY = "files.overlay"


@dataclass(frozen=True, slots=True)
class MemoryImages:
    """Folders of hibernation images or snapshot images, each named by the id of its sandbox or snapshot.

    Args:
        folder: Parent of these folders. It is created together with the first folder.
    """

    folder: Path

    def image(self, id_: str) -> Path:
        """Return the path of a sandbox's hibernation image or of a snapshot image. The image need not exist."""
        return self.folder / id_ / IMAGE

    def overlay(self, id_: str) -> Path:
        """Return the path of the overlay of a sandbox or snapshot. The overlay need not exist."""
        return self.folder / id_ / OVERLAY

    async def exists(self, id_: str) -> bool:
        """Return whether there is a hibernation image of this sandbox or a snapshot image of this snapshot."""
        return await asyncio.to_thread(self.image(id_).is_dir)

    async def has_overlay(self, id_: str) -> bool:
        """Return whether there is a complete overlay of this sandbox or snapshot."""
        return await asyncio.to_thread(self.overlay(id_).is_file)

    async def size_bytes(self, id_: str) -> int:
        """Return the number of bytes of disk space that the hibernation image or the overlay of a sandbox uses; 0 if there is neither."""
        return await asyncio.to_thread(_hibernated_bytes, self.image(id_), self.overlay(id_))

    async def make(self, id_: str) -> Path:
        """Create the folder of a sandbox or snapshot if it does not exist, and return the path for the memory image that a driver writes.

        A cancelled call ends when the folder exists, so that the caller can remove it.
        """
        making = asyncio.ensure_future(asyncio.to_thread(_make, self.folder / id_))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.wait({making})
            raise
        return self.image(id_)

    async def copy(self, image: Path, into: Path) -> int:
        """Copy a memory image by hard links and return its size in bytes. The files of an image never change, so the copy can share them."""
        return await asyncio.to_thread(_link_all, image, into)

    async def remove(self, id_: str) -> None:
        """Remove the folder of a sandbox or snapshot. Idempotent."""
        await asyncio.to_thread(shutil.rmtree, self.folder / id_, ignore_errors=True)

    async def tidy(self, keep: Collection[str]) -> int:
        """Remove all folders except those to keep. Return the number of removed folders.

        Args:
            keep: Ids of the sandboxes or snapshots whose folders are kept.
        """
        return await asyncio.to_thread(_tidy, self.folder, frozenset(keep))


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _link_all(image: Path, into: Path) -> int:
    new = into.with_name(into.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(image, new, copy_function=os.link)
    durable.publish_folder(new, into)
    return _size_bytes(into)


def _size_bytes(image: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in image.iterdir()) if image.is_dir() else 0


def _hibernated_bytes(image: Path, overlay: Path) -> int:
    return _size_bytes(image) or (overlay.stat().st_blocks * 512 if overlay.is_file() else 0)


def _tidy(folder: Path, keep: frozenset[str]) -> int:
    strays = [each for each in folder.iterdir() if each.name not in keep] if folder.is_dir() else []
    for stray in strays:
        shutil.rmtree(stray, ignore_errors=True)
    return len(strays)
