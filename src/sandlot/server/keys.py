"""API keys: made, listed, revoked and checked, with or without a running service.

Laws:
- A key is 256 bits of randomness and is shown once, when it is made. The file holds its SHA-256 only; that much randomness
  needs no slow hash, because nobody can guess it.
- The file is replaced whole (written, synced, renamed), readable by its owner only; two writers take turns.
- Checking takes the same time whichever key matches, and whether one does.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, NotFoundError

FILE = "keys.json"
PREFIX = "sandlot_"
"""Lets people and secret scanners see what it is."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Key:
    """One key, without its secret.

    Args:
        id: 12 characters, for people to tell keys apart.
        name: What it is called; no two have one name.
        sha256: Of the whole secret, hexadecimal.
        created_at: ISO 8601, UTC.
    """

    id: str
    name: str
    sha256: str
    created_at: str


class KeyStore:
    """The keys of one data directory.

    Args:
        data_dir: Where the file is, or will be.
    """

    def __init__(self, data_dir: Path) -> None:
        self._file = data_dir / FILE
        self._seen: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = ()

    def create(self, name: str) -> tuple[Key, str]:
        """Make a key.

        Args:
            name: Up to 63 letters, digits, '.', '_' and '-'.

        Returns:
            The key and its secret, which is kept nowhere.

        Raises:
            InvalidRequestError: That is no name.
            ConflictError: There is one of that name.
        """
        if NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                f"{name[:64]!r} is not a name for a key.",
                hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
            )
        secret = PREFIX + secrets.token_urlsafe(32)
        created_at = datetime.now(UTC).isoformat(timespec="seconds")
        key = Key(id=secrets.token_hex(6), name=name, sha256=_digest(secret), created_at=created_at)
        with self._exclusive():
            keys = self.list()
            if any(known.name == name for known in keys):
                raise ConflictError(
                    f"There is a key of the name {name!r} already.", code=ErrorCode.CONFLICT, hint="Choose another name, or revoke that one first."
                )
            self._write((*keys, key))
        return key, secret

    def list(self) -> tuple[Key, ...]:
        """All keys, oldest first.

        Raises:
            HostError: The file is there but cannot be read or understood.
        """
        try:
            found = self._file.stat()
        except FileNotFoundError:
            self._seen, self._keys = None, ()
            return ()
        # A rename gives the file a new inode, so that a change within one tick of the clock is seen as well.
        now = (found.st_ino, found.st_mtime_ns, found.st_size)
        if now != self._seen:
            self._keys = self._read()
            self._seen = now
        return self._keys

    def revoke(self, name_or_id: str) -> Key:
        """Take a key away; requests with it are refused from now on.

        Raises:
            NotFoundError: There is none of that name or id.
        """
        with self._exclusive():
            keys = self.list()
            gone = next((key for key in keys if name_or_id in {key.name, key.id}), None)
            if gone is None:
                raise NotFoundError(
                    f"There is no key {name_or_id[:64]!r}.", code=ErrorCode.NOT_FOUND, hint="'sandlot keys list' shows those that there are."
                )
            self._write(tuple(key for key in keys if key is not gone))
        return gone

    def verify(self, secret: str) -> Principal | None:
        """Whose key a secret is, or None."""
        digest = _digest(secret)
        found: Principal | None = None
        for key in self.list():
            if hmac.compare_digest(key.sha256, digest):
                found = Principal(owner=OwnerId(key.id), name=key.name)
        return found

    def _read(self) -> tuple[Key, ...]:
        try:
            content = json.loads(self._file.read_text("utf-8"))
            if content["format"] != _FORMAT:
                raise HostError(
                    f"{self._file} was written by another version of Sandlot.",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="Use that version, or remove the file.",
                )
            return tuple(Key(**{name: str(entry[name]) for name in Key.__slots__}) for entry in content["keys"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HostError(
                f"The key file {self._file} cannot be read: {error}.",
                code=ErrorCode.HOST_NOT_READY,
                hint="Restore it, or remove it and make new keys.",
            ) from error

    def _write(self, keys: tuple[Key, ...]) -> None:
        content = json.dumps({"format": _FORMAT, "keys": [asdict(key) for key in keys]}, indent=1)
        beside = self._file.with_name(f".{FILE}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._file)
            _sync_folder(self._file.parent)
        finally:
            beside.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One writer at a time, also across processes."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
