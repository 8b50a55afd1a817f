"""Archives that clients upload for builds: contexts of Dockerfiles and files of steps, on the disk of the host.

Invariants:
- An upload has its name only when it is complete. An interrupted upload leaves nothing.
- An upload belongs to one owner, and other owners cannot find it by its name.
- The content is never unpacked here. It is hostile until a sandbox reads it.
- Values that the service keeps between two requests of a client have names of their own, which no upload can have.
- An upload is removed a day after its last use, or earlier if its owner needs the space. An upload that was used in the last hour stays, because a
  build is about to start with it.
- A build that waits or runs holds its uploads: it reads hard links of its own, which count as one file with the upload and are never evicted.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sandlot.core.ports import Clock
from sandlot.host import durable
from sandlot.model.access import OwnerId, Principal, check_upload
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError
from sandlot.model.specs import GIB, MIB

OWNER_MAX_BYTES: Final = 4 * GIB
"""Largest size of all uploads of an owner together."""
UNUSED_S: Final = 24 * 3600.0
"""Seconds after the last use until an upload is removed."""
PROTECTED_S: Final = 3600.0
"""Seconds after the last use for which an upload is kept in any case."""
MIN_FREE_BYTES: Final = 1 * GIB
"""Free space of the disk below which nothing is stored."""

MAX_VALUE_BYTES: Final = 1 * MIB
"""Largest size of a value that the service keeps."""

_HELD: Final = ".held-"
"""Beginning of the names of the hard links that builds hold."""
_VALUE: Final = ".value-"
"""Beginning of the names of values that the service keeps."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_BATCH_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True)
class StoredUpload:
    """A complete upload.

    Args:
        path: File on the host.
        size_bytes: Size of the file.
        sha256: SHA-256 of the content, in hexadecimal.
    """

    path: Path
    size_bytes: int
    sha256: str


class Uploads:
    """Uploads of all owners.

    Args:
        folder: Folder of the uploads. It is created when it is needed.
        max_bytes: Largest size of one upload. The quota of a caller can be lower.

    Attributes:
        folder: As passed.
        max_bytes: As passed.
    """

    def __init__(self, folder: Path, clock: Clock, *, max_bytes: int) -> None:
        self.folder = folder
        self._clock = clock
        self.max_bytes = max_bytes

    async def write(self, principal: Principal, name: str, chunks: AsyncIterable[bytes]) -> StoredUpload:
        """Store an upload. An older one of the same name is replaced when the new one is complete.

        Args:
            principal: Owner of the upload.
            name: Name of the upload: letters, digits, ``-`` and ``_``.
            chunks: Content, read as fast as it is stored.

        Raises:
            LimitError: The upload is too large (``too_large``), a quota is exceeded (``quota_exceeded``), or the disk is full (``node_disk_full``).
        """
        return await self._write(principal, self._path(principal.owner, name), chunks)

    async def write_value(self, principal: Principal, name: str, content: bytes) -> None:
        """Keep a value between two requests of a client, who cannot read or replace it as an upload. It is removed like an upload.

        Raises:
            LimitError: The value is too large, or as for :meth:`write`.
        """

        async def chunks() -> AsyncIterator[bytes]:
            yield content

        if len(content) > MAX_VALUE_BYTES:
            raise LimitError(f"The values of the build have {len(content)} bytes; at most {MAX_VALUE_BYTES} are allowed.", code=ErrorCode.TOO_LARGE)
        await self._write(principal, self._value_path(principal.owner, name), chunks())

    async def read_value(self, principal: Principal, name: str) -> bytes | None:
        """Return a value, and note its use; None if it was not kept, or is no longer."""
        path = await self._find(self._value_path(principal.owner, name))
        return None if path is None else await asyncio.to_thread(path.read_bytes)

    async def _write(self, principal: Principal, path: Path, chunks: AsyncIterable[bytes]) -> StoredUpload:
        await asyncio.to_thread(self._remove_unused)
        draft = path.with_name(f".{secrets.token_hex(8)}.part")
        file = await asyncio.to_thread(_create, draft)
        try:
            size_bytes, sha256 = await self._copy(principal, file, chunks)
            await asyncio.to_thread(self._publish, principal.owner, draft, path, size_bytes)
        finally:
            file.close()
            draft.unlink(missing_ok=True)
        return StoredUpload(path, size_bytes, sha256)

    async def find(self, principal: Principal, name: str) -> Path | None:
        """Return the file of an upload, and note its use; None if the principal has no such upload."""
        return await self._find(self._path(principal.owner, name))

    async def _find(self, path: Path) -> Path | None:
        now_s = self._clock.now().timestamp()

        def touch() -> bool:
            try:
                os.utime(path, (now_s, now_s))
            except FileNotFoundError:
                return False
            return True

        return path if await asyncio.to_thread(touch) else None

    async def require(self, principal: Principal, names: Sequence[str]) -> dict[str, Path]:
        """Return the files of uploads by their names.

        Raises:
            InvalidRequestError: The principal has no upload of a name.
        """
        found: dict[str, Path] = {}
        for name in names:
            path = await self.find(principal, name)
            if path is None:
                raise InvalidRequestError(
                    f"The files {name[:64]!r} were not uploaded, or were removed since.",
                    hint="Request an upload link, upload the files, and start the build again.",
                    fields={"upload": name[:64]},
                )
            found[name] = path
        return found

    async def hold(self, paths: Collection[Path]) -> dict[Path, Path]:
        """Keep uploads for a build that waits or runs, whatever is removed or replaced meanwhile. Files outside of the folder are left out.

        Args:
            paths: Files, as :meth:`find` has returned them.

        Returns:
            File -> hard link for the build, which the caller passes to :meth:`release`.

        Raises:
            InvalidRequestError: A file was removed.
        """
        return await asyncio.to_thread(self._hold, [path for path in paths if path.parent.parent == self.folder])

    async def release(self, held: Collection[Path]) -> None:
        """Remove the hard links of a build that has ended. Idempotent."""
        for path in held:
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def open(self) -> None:
        """Remove the hard links that builds held before the restart. Call this before the first build."""
        await asyncio.to_thread(self._release_all)

    async def remove_unused(self) -> None:
        """Remove the uploads that were not used for a day."""
        await asyncio.to_thread(self._remove_unused)

    async def remove(self, principal: Principal, name: str) -> None:
        """Remove an upload. Idempotent."""
        await asyncio.to_thread(self._path(principal.owner, name).unlink, missing_ok=True)

    def _path(self, owner: OwnerId, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(f"{name[:64]!r} is not the name of an upload.", hint="Use 1 to 128 letters, digits, '-' and '_'.")
        return self.folder / owner / name

    def _value_path(self, owner: OwnerId, name: str) -> Path:
        return self._path(owner, name).with_name(f"{_VALUE}{name}")

    async def _copy(self, principal: Principal, file: BinaryIO, chunks: AsyncIterable[bytes]) -> tuple[int, str]:
        size_bytes, digest, batch = 0, hashlib.sha256(), bytearray()
        async for chunk in chunks:
            size_bytes += len(chunk)
            check_upload(principal.quota, size_bytes)
            if size_bytes > self.max_bytes:
                raise LimitError(
                    f"The upload has more than {self.max_bytes} bytes.",
                    code=ErrorCode.TOO_LARGE,
                    hint="Exclude files that the build does not need, for example in .dockerignore.",
                    fields={"max_bytes": self.max_bytes},
                )
            batch += chunk
            if len(batch) >= _BATCH_BYTES:
                await asyncio.to_thread(_append, file, digest, bytes(batch))
                batch.clear()
        await asyncio.to_thread(_append, file, digest, bytes(batch))
        return size_bytes, digest.hexdigest()

    def _publish(self, owner: OwnerId, draft: Path, path: Path, size_bytes: int) -> None:
        """Give a complete file its name. Blocks."""
        self._make_room(owner, size_bytes, replaced=path)
        with draft.open("rb+") as file:
            os.fsync(file.fileno())
        now_s = self._clock.now().timestamp()
        os.utime(draft, (now_s, now_s))
        draft.replace(path)
        durable.fsync_folder(path.parent)

    def _hold(self, paths: Collection[Path]) -> dict[Path, Path]:
        held: dict[Path, Path] = {}
        try:
            for path in paths:
                held[path] = path.with_name(f"{_HELD}{secrets.token_hex(8)}")
                os.link(path, held[path])
        except BaseException as error:
            for link in held.values():
                link.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError):
                raise InvalidRequestError(
                    "The files of the build were removed before it started.", hint="Upload them again, and start the build at once."
                ) from error
            raise
        return held

    def _release_all(self) -> None:
        for path in self.folder.glob(f"*/{_HELD}*"):
            path.unlink(missing_ok=True)

    def _make_room(self, owner: OwnerId, size_bytes: int, *, replaced: Path) -> None:
        """Remove the uploads of an owner that were not used for the longest time until another one has room. Blocks."""
        stored = []
        for path in (self.folder / owner).iterdir():
            if path != replaced and (path.name.startswith((_HELD, _VALUE)) or path.name[0] != "."):
                with suppress(FileNotFoundError):  # the build that held it has just ended
                    stored.append((path, path.stat()))
        used_bytes = size_bytes + sum({stat.st_ino: stat.st_size for _, stat in stored}.values())
        oldest_s = self._clock.now().timestamp() - PROTECTED_S
        for path, stat in sorted(stored, key=lambda each: each[1].st_mtime):
            if used_bytes <= OWNER_MAX_BYTES:
                return
            if stat.st_mtime < oldest_s and stat.st_nlink == 1 and not path.name.startswith(_HELD):
                path.unlink(missing_ok=True)
                used_bytes -= stat.st_size
        if used_bytes > OWNER_MAX_BYTES:
            raise LimitError(
                f"The uploads of this key for builds have more than {OWNER_MAX_BYTES} bytes together.",
                code=ErrorCode.QUOTA_EXCEEDED,
                hint="Wait until builds that use them have ended. Uploads that no build uses are removed after an hour.",
                fields={"limit": OWNER_MAX_BYTES},
            )

    def _remove_unused(self) -> None:
        """Remove uploads that were not used for a day, and those that a killed service left. Blocks."""
        if not self.folder.is_dir():
            return
        now_s = self._clock.now().timestamp()
        for path in self.folder.glob("*/*"):
            if path.name.startswith(_HELD):
                continue
            is_draft = path.name.startswith(".") and not path.name.startswith(_VALUE)
            limit_s = PROTECTED_S if is_draft else UNUSED_S
            try:
                if path.stat().st_mtime < now_s - limit_s:
                    path.unlink()
            except FileNotFoundError:
                continue


def _create(draft: Path) -> BinaryIO:
    draft.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _append(file: BinaryIO, digest: hashlib._Hash, content: bytes) -> None:
    """Append to a draft. Blocks."""
    stat = os.fstatvfs(file.fileno())
    if stat.f_bavail * stat.f_frsize < MIN_FREE_BYTES:
        raise _disk_full()
    digest.update(content)
    try:
        file.write(content)
        file.flush()
    except OSError as error:
        raise _disk_full() from error


def _disk_full() -> LimitError:
    return LimitError(
        "The disk of the node has no space for the upload.", code=ErrorCode.NODE_DISK_FULL, hint="Retry later, or ask the operator to free space."
    )
