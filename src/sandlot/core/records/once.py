"""Requests that are done once however often they are sent: what an ``Idempotency-Key`` promises.

The key is the client's own name for one request (draft-ietf-httpapi-idempotency-key-header). Sent again with the same request it gives
what that gave; with another request it is refused, because one of the two is a mistake. A request that failed made nothing, so its
key is free again. A key is known for as long as the record of what it made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from sandlot.core.admission import NewSandbox
from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError

KEY = re.compile(r"[\x21-\x7e]{1,255}")


class Once:
    """One turn at a time for each owner's key."""

    def __init__(self) -> None:
        self._turns: dict[tuple[OwnerId, str], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def turn(self, owner: OwnerId, key: str) -> AsyncIterator[None]:
        """Wait until nobody else is at work on a request of that key."""
        name = owner, key
        lock, waiting = self._turns.get(name, (asyncio.Lock(), 0))
        self._turns[name] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._turns[name]
            if waiting == 1:
                del self._turns[name]
            else:
                self._turns[name] = lock, waiting - 1


def check_key(key: str) -> str:
    """The key, where it is one.

    Raises:
        InvalidRequestError: It is none.
    """
    if KEY.fullmatch(key) is None:
        raise InvalidRequestError(
            "The Idempotency-Key is not one.",
            hint="Use 1 to 255 visible ASCII characters, for example a UUID, and a new one for every sandbox.",
            fields={"field": "Idempotency-Key"},
        )
    return key


def digest_of(asked: NewSandbox) -> str:
    """SHA-256 of a request, in hexadecimal. Pure."""
    return hashlib.sha256(json.dumps(asdict(asked), sort_keys=True, default=str).encode()).hexdigest()


def check_same(before: str | None, now: str) -> None:
    """Refuse another request under a key that was used.

    Raises:
        ConflictError: It is another.
    """
    if before != now:
        raise ConflictError(
            "Another request was sent under this Idempotency-Key before.",
            code=ErrorCode.CONFLICT,
            hint="Use a new key for every sandbox, and the same one only to send the very same request again.",
            fields={"field": "Idempotency-Key"},
        )
