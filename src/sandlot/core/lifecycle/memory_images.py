"""Folders of hibernation images and snapshot images, one for each sandbox or snapshot, below the data directory.

A folder contains ``image``, written by a driver, and ``files.layer``, a layer of files. This module does not know whether a folder is complete:
drivers publish an image by a rename, and the records in the store say what has to exist.
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
LAYER = "files.layer"


@dataclass(frozen=True, slots=True)
class MemoryImages:
    """Folders of images, by the id of their sandbox or snapshot.

    Args:
        folder: Parent of the folders; created with the first one.
    """

    folder: Path

    def image(self, id_: str) -> Path:
        """Return the path of a driver's image. The image need not exist."""
        return self.folder / id_ / IMAGE

    def layer(self, id_: str) -> Path:
        """Return the path of a layer of files. The layer need not exist."""
        return self.folder / id_ / LAYER

    async def make(self, id_: str) -> Path:
        """Create a folder, if it does not exist, and return the path for its image."""
        await asyncio.to_thread(lambda: (self.folder / id_).mkdir(mode=0o700, parents=True, exist_ok=True))
        return self.image(id_)

    async def copy(self, image: Path, into: Path) -> int:
        """Copy an image by hard links and return its size in bytes. The files of an image are never written again, so both share them."""
        return await asyncio.to_thread(_link_all, image, into)

    async def remove(self, id_: str) -> None:
        """Remove a folder. Idempotent."""
        await asyncio.to_thread(shutil.rmtree, self.folder / id_, ignore_errors=True)

    async def tidy(self, keep: Collection[str]) -> int:
        """Remove all folders except some, and return the number of removed folders.

        Args:
            keep: Ids of the folders to keep.
        """
        return await asyncio.to_thread(_tidy, self.folder, frozenset(keep))


def _link_all(image: Path, into: Path) -> int:
    new = into.with_name(into.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(image, new, copy_function=os.link)
    durable.publish_folder(new, into)
    return sum(file.stat().st_blocks * 512 for file in into.iterdir())


def _tidy(folder: Path, keep: frozenset[str]) -> int:
    strays = [each for each in folder.iterdir() if each.name not in keep] if folder.is_dir() else []
    for stray in strays:
        shutil.rmtree(stray, ignore_errors=True)
    return len(strays)
