"""Files and folders of a sandbox."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """Properties of one file, folder, symbolic link or other entry of the file system.

    Args:
        name: Last part of the path.
        path: Absolute path inside the sandbox.
        kind: file, directory, symlink or other.
        size: Size in bytes.
        mode: Permission bits.
        uid: User id of the owner.
        gid: Group id of the file.
        modified_ns: Time of the last change in nanoseconds since 1970, UTC.
        target: Target of a symbolic link; None for every other kind.
    """

    name: str
    path: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    modified_ns: int
    target: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the entries of a folder.

    Args:
        entries: Entries of the page, sorted by name.
        more: True if the folder has further entries after this page.
    """

    entries: tuple[Entry, ...]
    more: bool
