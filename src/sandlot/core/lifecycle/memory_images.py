"""Where the images of hibernated sandboxes and of snapshots are: one folder for each, below the state directory.

What is in a folder is its owner's: ``image`` is what a driver wrote, ``files.layer`` a layer of files. Nothing here says whether it is whole: a
driver's image appears by a rename, and records say what is meant to be there.
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
    """They.

    Args:
        folder: Where the folders are; made when the first one is.
    """

    folder: Path

    def image(self, id_: str) -> Path:
        """Where the driver's image of something is, or would be."""
        return self.folder / id_ / IMAGE

    def layer(self, id_: str) -> Path:
        """Where its layer of files is, or would be."""
        return self.folder / id_ / LAYER

    async def make(self, id_: str) -> Path:
        """Its folder, empty where it was not there; where its image goes to."""
        await asyncio.to_thread(lambda: (self.folder / id_).mkdir(mode=0o700, parents=True, exist_ok=True))
        return self.image(id_)

    async def copy(self, image: Path, into: Path) -> int:
        """The same image under another name: its files are never written again, so both share them. How many bytes they are."""
        return await asyncio.to_thread(_link_all, image, into)

    async def remove(self, id_: str) -> None:
        """Remove all that there is of something. Idempotent."""
        await asyncio.to_thread(shutil.rmtree, self.folder / id_, ignore_errors=True)

    async def tidy(self, keep: Collection[str]) -> int:
        """Remove what belongs to nothing that is kept; how many folders that were."""
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
