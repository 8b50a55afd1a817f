"""Folders that are watched, as the service tells of them: frozen values, read from the API's JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sandlot.sdk.info import Json


@dataclass(frozen=True, slots=True)
class FileEvent:
    """Something that happened in a folder that is watched.

    Args:
        kind: ``created``, ``modified``, ``removed``, ``moved``, or ``overflow``: more happened than could be told. Of a watcher's, also ``gone``:
            the folder itself was removed or moved.
        path: Its absolute path in the sandbox; empty of ``overflow``.
        is_dir: Whether it is a folder.
        source: Its path before, of what was moved.
    """

    kind: str
    path: str = ""
    is_dir: bool = False
    source: str | None = None

    @classmethod
    def parse(cls, kind: str, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(kind=kind, path=str(raw.get("path", "")), is_dir=raw.get("kind") == "directory", source=raw.get("source"))


@dataclass(frozen=True, slots=True)
class WatcherInfo:
    """A folder that the service watches for whoever asks later.

    Args:
        id: Its id.
        path: The folder.
        recursive: Whether the folders in it are watched too.
        by: ``inotify``, or ``scan`` where what comes and goes within a second may go unseen.
    """

    id: str
    path: str
    recursive: bool = False
    by: str = ""

    @classmethod
    def parse(cls, raw: Json) -> Self:
        """Read it from the API's JSON."""
        return cls(id=str(raw["watcher"]), path=str(raw["path"]), recursive=bool(raw.get("recursive")), by=str(raw.get("by", "")))
