"""API keys: create, list, revoke and verify them, and end the open requests of a revoked key.

Invariants:
- A key has 256 random bits and is shown once, when it is created. The store has only the SHA-256 of the key. A slow hash is not needed, because
  256 random bits cannot be guessed.
- A key is verified without reading the database: it is looked up by its SHA-256. The time of a lookup reveals at most bits of the digest of the
  presented secret, from which no valid key can be computed.
- When this service creates or revokes a key, the change takes effect at once. When another process does this, the change takes effect here within a
  second, after the next read of the store. While the store does not respond, the keys of the last successful read stay valid.
- Revoking a key ends everything that was opened with it: requests in progress, streams, terminals. Only the request that revokes the key
  still gets its response.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

import structlog

from sandlot.core.ports import Clock
from sandlot.model.access import LOCAL, OPERATOR, UNBOUNDED, OwnerId, Principal, Quota
from sandlot.model.errors import AuthenticationError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.records import KeyRecord
from sandlot.model.repositories import KeyRepository

SECRET_PREFIX: Final = "sandlot_"  # noqa: S105 - not a secret
"""Prefix of every key, by which people and secret scanners recognize a key."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
POLL_S: Final = 0.5
"""Seconds between two reads of the store for changes by other processes. Together, the pause and the read take less than a second."""

_log = structlog.get_logger("sandlot.core")


class ActiveRequests:
    """Tasks that work on requests, by owner."""

    def __init__(self) -> None:
        self._tasks: dict[OwnerId, set[asyncio.Task[Any]]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    @contextmanager
    def working_for(self, owner: OwnerId) -> Iterator[None]:
        """Register the current task as working for an owner during the body of the ``with`` block.

        Raises:
            AuthenticationError: The owner's key was revoked during the body of the ``with`` block.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no asyncio task is running")
        tasks = self._tasks.setdefault(owner, set())
        tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():
                raise  # the task was cancelled for another reason as well
            raise AuthenticationError("This API key was revoked.", hint="Ask the operator for another API key.") from None
        finally:
            self._ended.discard(task)
            tasks.discard(task)
            if not tasks and self._tasks.get(owner) is tasks:
                del self._tasks[owner]

    def end(self, owner: OwnerId) -> None:
        """End all requests of an owner except the request that the current task works on."""
        for task in self._tasks.get(owner, set()) - {asyncio.current_task()} - self._ended:
            self._ended.add(task)
            task.cancel()


class ApiKeys:
    """All API keys of a store. Call :meth:`refresh` before the first :meth:`verify`."""

    def __init__(self, table: KeyRepository, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._by_digest: dict[bytes, Principal] = {}
        self._by_owner: dict[OwnerId, Principal] = {}
        self._changes = 0
        """Number of changes that this service has made."""
        self._requests = ActiveRequests()
        self.working_for = self._requests.working_for

    async def create(self, name: str, *, operator: bool = False, quota: Quota | None = None) -> tuple[KeyRecord, str]:
        """Create a key.

        Args:
            name: Up to 63 letters, digits, '.', '_' and '-', unique among the valid keys.
            operator: True lets the key see the sandboxes of all owners, and create and revoke keys.
            quota: Quota of the key. None is the default quota, or no limit for an operator.

        Returns:
            The record of the key, and the key's secret, which is stored nowhere.

        Raises:
            InvalidRequestError: The name is invalid, or a field of the quota is negative or not finite.
            ConflictError: A valid key has this name.
        """
        if NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                f"{name[:64]!r} is not a valid name for a key.",
                hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
                fields={"field": "name"},
            )
        given = quota or (UNBOUNDED if operator else Quota())
        check_quota(given)
        secret = SECRET_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()
        record = KeyRecord(
            id=OwnerId(secrets.token_hex(6)),
            name=name,
            sha256=_digest(secret).hex(),
            operator=operator,
            quota=given,
            created_at=self._clock.now(),
        )
        await self._table.add(record)
        self._changes += 1
        self._by_digest[_digest(secret)] = self._by_owner[record.id] = _principal(record)
        return record, secret

    async def list(self) -> Sequence[KeyRecord]:
        """Return the valid keys in the store, oldest first."""
        return await self._table.list()

    async def revoke(self, name_or_id: str) -> KeyRecord:
        """Revoke a key: refuse new requests with it, and end its open requests with 401.

        Raises:
            NotFoundError: No valid key has this name or id.
        """
        gone = await self._table.revoke(name_or_id, self._clock.now())
        if gone is None:
            raise NotFoundError(
                f"There is no key {name_or_id[:64]!r}.",
                hint="List the valid keys with `sandlot keys list`.",
                fields={"key": name_or_id[:64]},
            )
        self._changes += 1
        self._by_digest.pop(bytes.fromhex(gone.sha256), None)
        self._by_owner.pop(gone.id, None)
        self._requests.end(gone.id)
        return gone

    def verify(self, secret: str) -> Principal | None:
        """Return the principal of a secret, or None if no valid key has this secret. Reads no database."""
        return self._by_digest.get(_digest(secret))

    def principal_of(self, owner: OwnerId) -> Principal | None:
        """Return the principal of an owner; the owner may be the operator of this machine. Return None if the owner's key was revoked."""
        if owner == LOCAL:
            return OPERATOR
        return self._by_owner.get(owner)

    def quota_of(self, owner: OwnerId) -> Quota:
        """Return the quota of an owner.

        The operator of this machine has no limits. An owner whose key was revoked has no limits either, because only an operator can start anything
        for this owner.
        """
        principal = self._by_owner.get(owner)
        return UNBOUNDED if principal is None else principal.quota

    async def refresh(self) -> None:
        """Read the valid keys from the store."""
        changes = self._changes
        records = await self._table.list()
        if changes != self._changes:
            return  # this service changed a key during the read, and the result may be older than the change
        before = self._by_owner.keys()
        self._by_digest = {bytes.fromhex(record.sha256): _principal(record) for record in records}
        self._by_owner = {principal.owner: principal for principal in self._by_digest.values()}
        for owner in before - self._by_owner.keys():
            self._requests.end(owner)

    async def run(self) -> None:
        """Read the valid keys from the store at short intervals, until cancelled."""
        is_failing = False
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
                is_failing = False
            except SandlotError as error:
                if not is_failing:  # log only the first failure, not two failures a second
                    _log.warning("keys.not_read", error=error.message, detail="keys that other processes revoke stay valid until the store responds")
                is_failing = True


def check_quota(quota: Quota) -> None:
    """Refuse a quota with an invalid number.

    Raises:
        InvalidRequestError: A field is negative or not finite.
    """
    for each in fields(quota):
        value = getattr(quota, each.name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise InvalidRequestError(
                f"The quota {each.name} is {value}; it must be a finite number, at least 0.",
                hint=f"Pass a number, or omit `{each.name}` for no limit.",
                fields={"field": each.name},
            )


def _principal(record: KeyRecord) -> Principal:
    return Principal(owner=record.id, name=record.name, operator=record.operator, quota=record.quota)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
