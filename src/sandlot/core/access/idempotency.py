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
from collections.abc import Callable
from dataclasses import asdict, dataclass

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OwnerId
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, UnavailableError
from sandlot.model.records import SandboxRecord
from sandlot.model.states import is_terminal
from sandlot.model.storage import SandboxTable

KEY = re.compile(r"[\x21-\x7e]{1,255}")


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


def request_digest(params: CreateSandboxParams) -> str:
    """SHA-256 of a request, in hexadecimal. Pure."""
    return hashlib.sha256(json.dumps(asdict(params), sort_keys=True, default=str).encode()).hexdigest()


def words_digest(*words: str) -> str:
    """The same of a request that is some words. Pure."""
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


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


async def find_created(
    table: SandboxTable,
    owner: OwnerId,
    key: str,
    digest: str,
    known: Callable[[str], Sandbox | None],
    revive: Callable[[SandboxRecord], Sandbox],
) -> Sandbox | None:
    """What an earlier request of this key made; None where that made nothing, or its client went away before it was told. Hold the turn.

    Args:
        table: Where sandboxes are recorded.
        owner: Whose key.
        key: It.
        digest: Of the request that is sent now.
        known: Finds a sandbox of this service.
        revive: Makes a sandbox of the record of one that has ended.

    Raises:
        ConflictError: It made something of another request.
        UnavailableError: What it made is not this service's to tell of.
    """
    while (record := await table.by_idempotency_key(owner, key)) is not None:
        check_same(record.request_digest, digest)
        sandbox = known(record.id)
        if sandbox is None and not is_terminal(record.state):
            raise UnavailableError(
                "The sandbox of this Idempotency-Key is on another node, or its end is not recorded yet.",
                code=ErrorCode.BUSY,
                hint="Ask the node that made it, try again later, or use another key for another sandbox.",
                fields={"retry_after_s": 5},
            )
        if sandbox is None or sandbox.is_announced:
            return sandbox or revive(record)
        await sandbox.ended.wait()  # whoever asked for it has gone away, and so does it; then its key is free
        await asyncio.sleep(0)
    return None


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An idempotency key and the digest of the request that was sent with it.

    Args:
        key: Key that the client chose.
        digest: SHA-256 of the request, in hexadecimal.
    """

    key: str
    digest: str

    def __post_init__(self) -> None:
        """Refuse an invalid key."""
        check_key(self.key)

    def check(self, earlier_digest: str | None) -> None:
        """Refuse the request if an earlier request with this key was a different one.

        Args:
            earlier_digest: Digest of the earlier request.

        Raises:
            ConflictError: The digests differ.
        """
        check_same(earlier_digest, self.digest)
