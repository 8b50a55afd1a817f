"""What owners have open: requests and sockets under way, ended when their key is taken away.

Law: Who was let in by a key that holds no more is neither answered nor heard any longer; whoever takes it away is answered all the same.

API keys: made, listed, revoked, and checked in memory.

Laws:
- A key is 256 bits of randomness and is shown once, when it is made. The store holds its SHA-256 only; that much randomness needs no
  slow hash, because nobody can guess it.
- Checking asks no database, and takes the same time whichever key matches, and whether one does.
- A change that this service makes holds at once; one that another process makes is seen by a look in the background, within a second. While the
  store does not answer, the keys that were seen last hold.
- A key that is gone takes along what was opened with it: requests under way, streams, terminals.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

import structlog

from sandlot.core.ports import Clock
from sandlot.model.access import LOCAL, OPERATOR, UNBOUNDED, OwnerId, Principal, Quota
from sandlot.model.errors import AuthenticationError, ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.records import KeyRecord
from sandlot.model.storage import KeyTable


class ActiveRequests:
    """The tasks that work for each owner."""

    def __init__(self) -> None:
        self._tasks: dict[OwnerId, set[asyncio.Task[Any]]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    @contextmanager
    def working_for(self, owner: OwnerId) -> Iterator[None]:
        """Around what the current task does for an owner.

        Raises:
            AuthenticationError: The owner's key was taken away meanwhile.
        """
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("no task is running")
        mine = self._tasks.setdefault(owner, set())
        mine.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._ended or task.uncancel():
                raise  # somebody else wants it to end as well
            raise AuthenticationError("This API key was revoked.", code=ErrorCode.UNAUTHENTICATED, hint="Ask the operator for another one.") from None
        finally:
            self._ended.discard(task)
            mine.discard(task)
            if not mine and self._tasks.get(owner) is mine:
                del self._tasks[owner]

    def end(self, owner: OwnerId) -> None:
        """End all that is done for an owner, but for what says so."""
        for task in self._tasks.get(owner, set()) - {asyncio.current_task()} - self._ended:
            self._ended.add(task)
            task.cancel()


PREFIX: Final = "sandlot_"
"""Lets people and secret scanners see what it is."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
LOOK_S: Final = 0.5
"""Between two looks for what other processes changed: with the look itself less than a second."""
_log = structlog.get_logger("sandlot.core")


class ApiKeys:
    """The keys of a store. Call :meth:`look` before anything is verified.

    Args:
        table: Where they are.
        clock: The time.
        random: Gives that many random bytes.
    """

    def __init__(self, table: KeyTable, clock: Clock, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._table = table
        self._clock = clock
        self._random = random
        self._known: tuple[tuple[bytes, Principal], ...] = ()
        self._quotas: dict[OwnerId, Quota] = {}
        self._changes = 0
        self._holding = ActiveRequests()
        self.working_for = self._holding.working_for

    async def create(self, name: str, *, operator: bool = False, quota: Quota | None = None) -> tuple[KeyRecord, str]:
        """Make a key.

        Args:
            name: Up to 63 letters, digits, '.', '_' and '-'; no two that are valid have one name.
            operator: Whether it sees everybody's sandboxes, and may make and revoke keys.
            quota: What it may take; None is the default plan, and for an operator no bound.

        Returns:
            The key and its secret, which is kept nowhere.

        Raises:
            InvalidRequestError: That is no name, or no quota.
            ConflictError: There is one of that name.
        """
        if NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                f"{name[:64]!r} is not a name for a key.",
                hint="Use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or a digit.",
                fields={"field": "name"},
            )
        given = quota or (UNBOUNDED if operator else Quota())
        check_quota(given)
        secret = PREFIX + base64.urlsafe_b64encode(self._random(32)).rstrip(b"=").decode()
        record = KeyRecord(
            id=OwnerId(self._random(6).hex()),
            name=name,
            sha256=_digest(secret).hex(),
            operator=operator,
            quota=given,
            created_at=self._clock.now(),
        )
        await self._table.add(record)
        self._changes += 1
        self._known = (*self._known, (bytes.fromhex(record.sha256), _principal(record)))
        self._quotas[record.id] = given
        return record, secret

    async def list(self) -> Sequence[KeyRecord]:
        """Those that are valid, oldest first, as the store has them."""
        return await self._table.all()

    async def revoke(self, name_or_id: str) -> KeyRecord:
        """Take a key away; requests with it are refused from now on, and those under way are ended.

        Raises:
            NotFoundError: There is no valid one of that name or id.
        """
        gone = await self._table.revoke(name_or_id, self._clock.now())
        if gone is None:
            raise NotFoundError(
                f"There is no key {name_or_id[:64]!r}.",
                code=ErrorCode.NOT_FOUND,
                hint="'sandlot keys list' shows those that there are.",
                fields={"key": name_or_id[:64]},
            )
        self._changes += 1
        self._known = tuple(known for known in self._known if known[1].owner != gone.id)
        self._quotas.pop(gone.id, None)
        self._holding.end(gone.id)
        return gone

    def verify(self, secret: str) -> Principal | None:
        """Whose key a secret is, or None; asks no database."""
        digest = _digest(secret)
        found: Principal | None = None
        for sha256, principal in self._known:
            if hmac.compare_digest(sha256, digest):
                found = principal
        return found

    def principal_of(self, owner: OwnerId) -> Principal | None:
        """Whoever has the key of that id, the operator of the machine too; None where it was revoked."""
        if owner == LOCAL:
            return OPERATOR
        return next((principal for _, principal in self._known if principal.owner == owner), None)

    def quota_of(self, owner: OwnerId) -> Quota:
        """What an owner may take: who has no key (the operator; one whose key was revoked) begins nothing but by an operator's hand."""
        return self._quotas.get(owner, UNBOUNDED)

    async def look(self) -> None:
        """See what the store has now."""
        begun = self._changes
        records = await self._table.all()
        if begun != self._changes:
            return  # this service has changed a key meanwhile, and what was read may be from before
        before = {principal.owner for _, principal in self._known}
        self._known = tuple((bytes.fromhex(record.sha256), _principal(record)) for record in records)
        self._quotas = {record.id: record.quota for record in records}
        for owner in before - self._quotas.keys():
            self._holding.end(owner)

    async def run(self) -> None:
        """Look again and again; until it is cancelled."""
        failing = False
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
                failing = False
            except SandlotError as error:
                if not failing:  # once, not twice a second
                    _log.warning("keys.not_read", error=error.message, hint="Keys that were revoked elsewhere may hold until the store answers.")
                failing = True


def check_quota(quota: Quota) -> None:
    """Refuse a quota that bounds by what is no number.

    Raises:
        InvalidRequestError: A field is negative or not finite.
    """
    for each in fields(quota):
        value = getattr(quota, each.name)
        if value is not None and not 0 <= value < math.inf:
            raise InvalidRequestError(
                f"The quota {each.name} is {value}; it must be 0 or more.", hint="Leave it out for no bound.", fields={"field": each.name}
            )


def _principal(record: KeyRecord) -> Principal:
    return Principal(owner=record.id, name=record.name, operator=record.operator, quota=record.quota)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
