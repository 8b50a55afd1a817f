"""Files of the file store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sandlot.sdk.models.values import short_repr


@dataclass(frozen=True, slots=True, repr=False)
class StoredFile:
    """A file of the file store.

    Args:
        id: Id of the file, for ``client.file_store`` and ``Sandbox.create``.
        filename: Name of the file when it is imported into a sandbox.
        media_type: Media type, such as ``text/csv``.
        size_bytes: Size in bytes.
        sha256: SHA-256 of the content, in hexadecimal.
        created_at: Time of the upload or export.
        sandbox: Id of the sandbox that the file was exported from; None if it was uploaded.
    """

    id: str
    filename: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    sandbox: str | None = None

    __repr__ = short_repr("id", "filename", "size_bytes")


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """A page of the file store, newest files first.

    Args:
        files: Files of the page.
        total: Number of files of all pages.
        limit: Largest number of files of a page.
        offset: Number of files before the page.
    """

    files: tuple[StoredFile, ...]
    total: int
    limit: int
    offset: int

    def __iter__(self) -> Iterator[StoredFile]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)
