"""API keys: create, list, update, revoke and verify them, and end the open requests of a key that is revoked or expires.

Invariants:
- A key has 256 random bits and is shown once, when it is created. The store has only the SHA-256 of the key. A slow hash is not needed, because
  256 random bits cannot be guessed.
- A key is verified without reading the database: it is looked up by its SHA-256. The time of a lookup reveals at most bits of the digest of the
  presented secret, from which no valid key can be computed.
- When this service creates, updates or revokes a key, the change takes effect at once. When another process does this, the change takes effect here
  within a second, after the next read of the store. While the store does not respond, the keys of the last successful read stay valid.
- A key that is revoked or expires ends everything that was opened with it: requests in progress, streams, terminals, runs of agents. Only the request
  that revokes or updates the key still gets its response.
- An expired key can be extended. Until then its requests are refused, but everything that it created stays: sandboxes, pools, webhooks.
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
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from sandlot.core.ports import Clock
from sandlot.model.access import LOCAL, OPERATOR, UNBOUNDED, KeyFormat, OwnerId, Principal, Quota
from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.records import KeyChange, KeyRecord
from sandlot.model.repositories import KeyRepository

SECRET_PREFIX: Final = "sandlot_"  # noqa: S105 - not a secret
"""Prefix of keys, by which people and secret scanners recognize a key."""
E2B_SECRET_PREFIX: Final = "e2b_"  # noqa: S105 - not a secret
"""Prefix of keys of the format ``e2b``, without which old clients of E2B refuse a key."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
RESERVED_NAME: Final = "current"
"""Name that no key can have, because ``/v1/keys/current`` is the key of the request."""
POLL_S: Final = 0.5
"""Seconds between two reads of the store for changes by other processes. Together, the pause and the read take less than a second."""
MAX_EXPIRY_WAIT_S: Final = 60.0
"""Longest wait for the next expiry. After it, the date is compared again, because the clock of the machine may have been set."""

_log = structlog.get_logger("sandlot.core")


class ActiveRequests:
    """Tasks that work on requests, by owner."""

    def __init__(self) -> None:
        self._tasks: dict[OwnerId, set[asyncio.Task[Any]]] = {}
        self._ended: dict[asyncio.Task[Any], AuthenticationError] = {}

    @contextmanager
    def working_for(self, owner: OwnerId) -> Iterator[None]:
        """Register the current task as working for an owner during the body of the ``with`` block.

        Raises:
            AuthenticationError: The owner's key was revoked or expired during the body of the ``with`` block.
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
            raise self._ended[task] from None
        finally:
            self._ended.pop(task, None)
            tasks.discard(task)
            if not tasks and self._tasks.get(owner) is tasks:
                del self._tasks[owner]

    def end(self, owner: OwnerId, error: AuthenticationError) -> None:
        """End all requests of an owner with an error, except the request that the current task works on."""
        for task in self._tasks.get(owner, set()) - {asyncio.current_task()} - self._ended.keys():
            self._ended[task] = error
            task.cancel()


class ApiKeys:
    """All API keys of a store. Call :meth:`refresh` before the first :meth:`verify`."""

    def __init__(self, table: KeyRepository, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._by_digest: dict[bytes, Principal] = {}
        self._by_owner: dict[OwnerId, Principal] = {}
        self._expired: set[OwnerId] = set()
        """Keys whose open requests were ended because they expired."""
        self._changed = asyncio.Event()
        self._changes = 0
        """Number of changes that this service has made."""
        self._requests = ActiveRequests()
        self.working_for = self._requests.working_for

    async def create(
        self,
        name: str,
        *,
        operator: bool = False,
        quota: Quota | None = None,
        expires_at: datetime | None = None,
        format: KeyFormat = KeyFormat.SANDLOT,  # noqa: A002 - the name of the field
    ) -> tuple[KeyRecord, str]:
        """Create a key.

        Args:
            name: Up to 63 letters, digits, '.', '_' and '-', unique among the keys that are not revoked. Not ``current``.
            operator: True lets the key see the sandboxes of all owners, and create, update and revoke keys.
            quota: Quota of the key. None is the default quota, or no limit for an operator.
            expires_at: Time from which requests with the key are refused. None: never.
            format: Form of the secret.

        Returns:
            The record of the key, and the key's secret, which is stored nowhere.

        Raises:
            InvalidRequestError: The name is invalid, a field of the quota is negative or not finite, or ``expires_at`` has passed.
            ConflictError: A key that is not revoked has this name.
        """
        check_name(name)
        given = quota or (UNBOUNDED if operator else Quota())
        check_quota(given)
        expires_at, now = to_utc(expires_at), self._clock.now()
        if expires_at is not None and expires_at <= now:
            raise InvalidRequestError(
                f"`expires_at` is {expires_at.isoformat()}, which has passed.",
                hint="Pass a later time, or omit `expires_at` for a key that never expires.",
                fields={"field": "expires_at"},
            )
        secret = _new_secret(format)
        record = KeyRecord(
            id=OwnerId(secrets.token_hex(6)),
            name=name,
            sha256=_digest(secret).hex(),
            operator=operator,
            quota=given,
            created_at=now,
            expires_at=expires_at,
        )
        await self._table.add(record)
        self._put(record)
        return record, secret

    async def list(self) -> Sequence[KeyRecord]:
        """Return the keys in the store that are not revoked, expired keys included, oldest first."""
        return await self._table.list()

    async def get(self, name_or_id: str) -> KeyRecord:
        """Return the key with this id or, if there is none, the key with this name.

        Raises:
            NotFoundError: No key that is not revoked has this name or id.
        """
        matching = [record for record in await self._table.list() if name_or_id in {record.id, record.name}]
        found = next((record for record in matching if record.id == name_or_id), next(iter(matching), None))
        if found is None:
            raise _not_found(name_or_id)
        return found

    async def update(self, name_or_id: str, change: KeyChange) -> KeyRecord:
        """Change a key. New requests with the key get the new values. If the new ``expires_at`` has passed, end the key's open requests with 401.

        Raises:
            NotFoundError: No key that is not revoked has this name or id.
            InvalidRequestError: The new name or time is invalid, or a field of the new quota is negative or not finite.
            ConflictError: Another key that is not revoked has the new name.
        """
        change = replace(change, expires_at=to_utc(change.expires_at))
        if change.name is not None:
            check_name(change.name)
        if change.quota is not None:
            check_quota(change.quota)
        record = await self._table.update(name_or_id, change)
        if record is None:
            raise _not_found(name_or_id)
        self._put(record)
        self._end_expired()  # here, where the current task is known as the request that must get its response
        return record

    async def revoke(self, name_or_id: str) -> KeyRecord:
        """Revoke a key: refuse new requests with it, and end its open requests with 401.

        Raises:
            NotFoundError: No key that is not revoked has this name or id.
        """
        gone = await self._table.revoke(name_or_id, self._clock.now())
        if gone is None:
            raise _not_found(name_or_id)
        self._changes += 1
        self._by_digest.pop(bytes.fromhex(gone.sha256), None)
        self._by_owner.pop(gone.id, None)
        self._requests.end(gone.id, _revoked())
        return gone

    def verify(self, secret: str) -> Principal | None:
        """Return the principal of a secret, or None if no key has this secret. Reads no database.

        Raises:
            AuthenticationError: The key has expired.
        """
        principal = self._by_digest.get(_digest(secret))
        if principal is not None and principal.expires_at is not None and principal.expires_at <= self._clock.now():
            raise _has_expired(principal.expires_at)
        return principal

    def principal_of(self, owner: OwnerId) -> Principal | None:
        """Return the principal of an owner, even if its key has expired. Return None if the key was revoked.

        The owner may be the operator of this machine.
        """
        if owner == LOCAL:
            return OPERATOR
        return self._by_owner.get(owner)

    def valid_principal_of(self, owner: OwnerId) -> Principal | None:
        """Return the principal of an owner. Return None if the owner's key has expired or was revoked."""
        principal = self.principal_of(owner)
        is_expired = principal is not None and principal.expires_at is not None and principal.expires_at <= self._clock.now()
        return None if is_expired else principal

    def check_valid(self, owner: OwnerId) -> None:
        """Refuse an owner whose key is no longer valid.

        Raises:
            AuthenticationError: The key has expired or was revoked.
        """
        if self.valid_principal_of(owner) is None:
            principal = self.principal_of(owner)
            raise _revoked() if principal is None or principal.expires_at is None else _has_expired(principal.expires_at)

    def quota_of(self, owner: OwnerId) -> Quota:
        """Return the quota of an owner.

        The operator of this machine has no limits. An owner whose key was revoked has no limits either, because only an operator can start anything
        for this owner.
        """
        principal = self._by_owner.get(owner)
        return UNBOUNDED if principal is None else principal.quota

    async def refresh(self) -> None:
        """Read the keys from the store."""
        changes = self._changes
        records = await self._table.list()
        if changes != self._changes:
            return  # this service changed a key during the read, and the result may be older than the change
        before = self._by_owner
        self._by_digest = {bytes.fromhex(record.sha256): _principal(record) for record in records}
        self._by_owner = {principal.owner: principal for principal in self._by_digest.values()}
        for owner in before.keys() - self._by_owner.keys():
            self._requests.end(owner, _revoked())
        if before != self._by_owner:
            self._changed.set()

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

    async def end_expired_requests(self) -> None:
        """End the open requests of each key when the key expires, until cancelled."""
        while True:
            self._changed.clear()
            self._end_expired()
            pending = [each.expires_at for each in self._by_owner.values() if each.expires_at is not None and each.owner not in self._expired]
            waits: set[asyncio.Future[object]] = {asyncio.ensure_future(self._changed.wait())}
            if pending:
                wait_s = min((min(pending) - self._clock.now()).total_seconds(), MAX_EXPIRY_WAIT_S)
                waits.add(asyncio.ensure_future(self._clock.sleep_until(self._clock.monotonic_s() + wait_s)))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waits:
                    each.cancel()

    def _end_expired(self) -> None:
        now = self._clock.now()
        self._expired &= self._by_owner.keys()
        for owner, principal in self._by_owner.items():
            if principal.expires_at is None or principal.expires_at > now:
                self._expired.discard(owner)
            elif owner not in self._expired:
                self._expired.add(owner)
                self._requests.end(owner, _has_expired(principal.expires_at))

    def _put(self, record: KeyRecord) -> None:
        self._changes += 1
        self._by_digest[bytes.fromhex(record.sha256)] = self._by_owner[record.id] = _principal(record)
        self._changed.set()


def check_name(name: str) -> None:
    """Refuse a name that no key can have.

    Raises:
        InvalidRequestError: The name is reserved, or has other characters than letters, digits, '.', '_' and '-'.
    """
    if name == RESERVED_NAME:
        raise InvalidRequestError(f"No key can have the name {name!r}.", hint="Choose another name.", fields={"field": "name"})
    if NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"{name[:64]!r} is not a valid name for a key.",
            hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
            fields={"field": "name"},
        )


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


def to_utc(expires_at: datetime | None) -> datetime | None:
    """Return a time of expiry in UTC.

    Raises:
        InvalidRequestError: The time is before the year 1 or after the year 9999 in UTC.
    """
    try:
        return None if expires_at is None else expires_at.astimezone(UTC)
    except OverflowError:
        raise InvalidRequestError(
            f"`expires_at` is {expires_at}, which is out of range.", hint="Pass a time before the year 9999.", fields={"field": "expires_at"}
        ) from None


def _principal(record: KeyRecord) -> Principal:
    return Principal(owner=record.id, name=record.name, operator=record.operator, quota=record.quota, expires_at=record.expires_at)


def _new_secret(format_: KeyFormat) -> str:
    if format_ is KeyFormat.E2B:
        return E2B_SECRET_PREFIX + secrets.token_hex(32)
    return SECRET_PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()


def _revoked() -> AuthenticationError:
    return AuthenticationError("This API key was revoked.", hint="Ask the operator for another API key.")


def _has_expired(at: datetime) -> AuthenticationError:
    return AuthenticationError(f"This API key expired at {at.isoformat()}.", hint="Ask the operator to extend the key, or for another API key.")


def _not_found(name_or_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no key {name_or_id[:64]!r}.",
        code=ErrorCode.KEY_NOT_FOUND,
        hint="List the valid keys with `sandlot key ls`.",
        fields={"key": name_or_id[:64]},
    )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
