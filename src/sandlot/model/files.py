"""Files and folders of a sandbox, and checks of the names and media types of files."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from sandlot.model.errors import InvalidRequestError
from sandlot.model.streams import Stream

MAX_TRACKED_FOLDERS = 16
"""Maximum number of folders that are compared for one execution."""
INJECT_FOLDER = "."
"""Default folder in a sandbox for files that are copied into the sandbox."""
MAX_INJECTED = 100
"""Maximum number of files that one request copies into a sandbox."""
MAX_FILENAME_BYTES = 255
"""Maximum length of a file name: NAME_MAX of Linux (limits.h)."""
MAX_MEDIA_TYPE_CHARS = 127
"""Maximum length of a media type. RFC 6838, section 4.2, allows 127 characters for each of type and subtype; Sandlot allows 127 for the whole."""

_WORD = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:; ?{_WORD}=(?:{_WORD}|\"[A-Za-z0-9!#$&^_.+ -]*\"))*")


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
        attributes: Extended attributes (xattr(7)) by name; empty if they were not requested.
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
    attributes: Mapping[str, str] = field(default_factory=dict)


class Download(Stream[bytes], Protocol):
    """Content of a file that is being read."""

    @property
    def entry(self) -> Entry:
        """Size, times and permissions of the file when it was opened."""
        ...


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of the entries of a folder.

    Args:
        entries: Entries of the page, sorted by name.
        more: True if the folder has further entries after this page.
    """

    entries: tuple[Entry, ...]
    more: bool


class FileEventKind(StrEnum):
    """Kind of an event of a watched folder."""

    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    MOVED = "moved"
    OVERFLOW = "overflow"
    """Events may be missing."""
    GONE = "gone"
    """The watched folder itself was removed or moved."""


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A change in a watched folder.

    Args:
        kind: Change of the entry, or ``overflow`` or ``gone``.
        path: Absolute path of the entry inside the sandbox; empty for ``overflow``.
        folder: True if the entry is a folder.
        source: Previous path of a moved entry.
    """

    kind: FileEventKind
    path: str
    folder: bool = False
    source: str | None = None


class FolderWatch(Stream[FileEvent], Protocol):
    """Events of one folder. The stream ends after the event ``gone``."""

    @property
    def by(self) -> str:
        """Method of the watch, ``inotify`` or ``scan``. A scan may miss changes that are undone within a second."""
        ...

    @property
    def root(self) -> str:
        """Path of the folder with all symbolic links resolved. The paths of all events begin with this path."""
        ...


@dataclass(frozen=True, slots=True)
class Watch:
    """A watch that keeps its events until a client takes them.

    Args:
        path: Path of the folder as the caller named it.
        root: Path of the folder with all symbolic links resolved. The paths of all events begin with this path.
        by: Method of the watch, ``inotify`` or ``scan``. A scan may miss changes that are undone within a second.
        recursive: True if all folders below the folder are watched too.
    """

    id: str
    path: str
    root: str
    by: str
    recursive: bool


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that was created or changed.

    Args:
        path: Absolute path inside the sandbox. The path begins with the folder as the caller named it.
        created: True if the file is new, False if the file existed before the execution.
        size_bytes: Size after the execution.
        modified_ns: Modification time after the execution, in nanoseconds since 1970, UTC.
    """

    path: str
    created: bool
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Result of unpacking an archive.

    Args:
        files: Number of regular files.
        folders: Number of folders that the archive names.
        links: Number of symbolic and hard links.
        size_bytes: Total size of the files.
        skipped_links: Names of the first 100 symbolic links that were skipped because they may lead out of the folder.
    """

    files: int
    folders: int
    links: int
    size_bytes: int
    skipped_links: tuple[str, ...]


def check_filename(name: str) -> str:
    """Return a file name if it is valid: a single path component of printable characters, at most 255 bytes of UTF-8.

    Raises:
        InvalidRequestError: The name is invalid; the message says why.
    """
    if problem := _filename_problem(name):
        raise InvalidRequestError(
            f"The file name {name[:100]!r} {problem}.", hint="Pass a name without a directory, such as `data.csv`.", fields={"field": "filename"}
        )
    return name


def tidy_filename(path: str) -> str:
    """Return the last part of a path, changed so that :func:`check_filename` accepts it; ``file`` if no valid name results."""
    last = path.rstrip("/").rpartition("/")[2]
    name = "".join("_" if _unprintable(char) else char for char in last)
    while len(name.encode("utf-8", "replace")) > MAX_FILENAME_BYTES:
        name = name[:-1]
    return "file" if _filename_problem(name) else name


def check_media_type(media_type: str) -> str:
    """Return a media type (RFC 6838) with its parameters if it is valid.

    Raises:
        InvalidRequestError: The media type is invalid.
    """
    if len(media_type) > MAX_MEDIA_TYPE_CHARS or _MEDIA_TYPE.fullmatch(media_type) is None:
        raise InvalidRequestError(
            f"The media type {media_type[:100]!r} is not valid.", hint="Pass a type such as `text/csv`, or omit it.", fields={"field": "media_type"}
        )
    return media_type


def _filename_problem(name: str) -> str:
    if not name:
        return "is empty"
    if name in {".", ".."}:
        return "names a folder"
    if "/" in name or "\\" in name:
        return "contains a slash"
    if any(_unprintable(char) for char in name):
        return "contains a character that cannot be printed"
    if len(name.encode()) > MAX_FILENAME_BYTES:
        return f"has more than {MAX_FILENAME_BYTES} bytes"
    return ""


def _unprintable(char: str) -> bool:
    """Return whether a character could make a displayed name look like another name.

    Such characters are control characters, line breaks, changes of the writing direction, and lone surrogates.
    """
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
