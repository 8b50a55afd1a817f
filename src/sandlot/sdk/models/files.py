"""Files and directories of a sandbox, and changes to them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True, repr=False)
class FileEntry:
    """A file, directory or link in a sandbox.

    Args:
        name: Name without the directory.
        path: Absolute path.
        kind: ``file``, ``directory``, ``symlink`` or ``other``.
        size_bytes: Size in bytes.
        mode: Permission bits.
        uid: User id of the owner.
        gid: Group id.
        modified_at: Time of the last change of the content.
        target: Target of a symbolic link.
    """

    name: str
    path: str
    kind: str
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at: datetime | None = None
    target: str | None = None

    __repr__ = short_repr("path", "kind", "size_bytes")

    @property
    def is_dir(self) -> bool:
        """True for a directory."""
        return self.kind == "directory"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A change in a watched directory.

    Args:
        kind: ``created``, ``modified``, ``removed``, ``moved``; ``overflow`` if events were dropped; of a watcher also ``gone`` if the watched
            directory was removed or moved.
        path: Absolute path; empty for ``overflow``.
        is_dir: True for a directory.
        source: Former path of what was moved.
    """

    kind: str
    path: str = ""
    is_dir: bool = False
    source: str | None = None


@dataclass(frozen=True, slots=True)
class WatcherInfo:
    """A watcher: a watched directory whose events the service collects.

    Args:
        id: Id of the watcher.
        path: Watched directory.
        recursive: True if directories below are watched too.
        by: ``inotify``, or ``scan``, which misses files that exist for less than a second.
    """

    id: str
    path: str
    recursive: bool = False
    by: str = ""
