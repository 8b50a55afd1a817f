"""Files of the file store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the file store.

    Args:
        id: Its id, for ``AsyncSandbox.create(files=[...])`` and ``client.files``.
        filename: What it is called when it is put into a sandbox.
        media_type: Such as ``text/csv``.
        size_bytes: How large it is.
        sha256: Of its bytes, in hexadecimal.
        created_at: When it was kept.
        sandbox: The sandbox that it came out of; None where it was uploaded.
    """

    id: str
    filename: str
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    sandbox: str | None = None

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            id=str(raw["id"]),
            filename=str(raw["filename"]),
            media_type=str(raw["media_type"]),
            size_bytes=int(raw["size_bytes"]),
            sha256=str(raw["sha256"]),
            created_at=datetime.fromisoformat(raw["created_at"]),
            sandbox=raw.get("sandbox"),
        )


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """A page of files, newest first. Iterate it.

    Args:
        files: They.
        total: How many there are on all pages.
        limit: Files on one page, at most.
        offset: How many were skipped.
    """

    files: tuple[StoredFile, ...]
    total: int
    limit: int
    offset: int

    def __iter__(self) -> Iterator[StoredFile]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        files = tuple(StoredFile.parse(each) for each in raw["files"])
        return cls(files=files, total=int(raw["total"]), limit=int(raw["limit"]), offset=int(raw["offset"]))
