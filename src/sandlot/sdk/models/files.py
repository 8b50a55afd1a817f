"""Files and directories of a sandbox, and changes to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file, folder or link inside a sandbox.

    Args:
        name: Its name, without the folder.
        path: Its absolute path.
        kind: ``file``, ``directory``, ``symlink`` or ``other``.
        size: Bytes.
        mode: Permission bits.
        uid: Owner.
        gid: Group.
        modified_at: When its content last changed.
        target: What a symbolic link points to.
    """

    name: str
    path: str
    kind: str
    size: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at: datetime | None = None
    target: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            name=str(raw["name"]),
            path=str(raw["path"]),
            kind=str(raw["kind"]),
            size=int(raw.get("size", 0)),
            mode=int(raw.get("mode", 0)),
            uid=int(raw.get("uid", 0)),
            gid=int(raw.get("gid", 0)),
            modified_at=datetime.fromisoformat(raw["modified_at"]) if raw.get("modified_at") else None,
            target=raw.get("target"),
        )

    @property
    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return self.kind == "directory"


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
    def parse(cls, kind: str, raw: Mapping[str, Any]) -> Self:
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
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(id=str(raw["watcher"]), path=str(raw["path"]), recursive=bool(raw.get("recursive")), by=str(raw.get("by", "")))
