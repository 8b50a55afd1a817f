"""Idempotency keys: a request that is sent twice with the same ``Idempotency-Key`` is carried out once.

The key is the client's own name for one request (draft-ietf-httpapi-idempotency-key-header). The record of the result contains the key. The
manager that handles a request locks the key, and looks for a record with this key before it carries out the request.

Invariants:
- If a request is repeated with the same key, the repetition gets the result of the first request. A different request with the same key is refused,
  because one of the two requests is a mistake.
- A failed request has no result, so its key can be used again. The service knows a key as long as the record of the result exists.
- Requests of one kind with the same owner and key run one after another.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, is_dataclass
from typing import Final

from sandlot.model.errors import ConflictError, InvalidRequestError
from sandlot.model.ids import ProcessId, SandboxId

KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


def check_key(key: str) -> str:
    """Check an idempotency key, and return the key unchanged.

    Raises:
        InvalidRequestError: The key is empty, longer than 255 characters, or contains characters other than visible ASCII.
    """
    if KEY.fullmatch(key) is None:
        raise InvalidRequestError(
            f"The Idempotency-Key {key[:64]!r} is not valid.",
            hint="Use 1 to 255 visible ASCII characters, for example a UUID, and a new key for each request.",
            fields={"field": "Idempotency-Key"},
        )
    return key


def request_digest(*parts: object) -> str:
    """Return the SHA-256 of a request, in hexadecimal. Pure.

    Args:
        parts: All values that distinguish the request from other requests of the same kind: strings, numbers, None and dataclasses.
    """
    plain = [asdict(part) if is_dataclass(part) and not isinstance(part, type) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()


def execution_id(sandbox: SandboxId, key: str, *parts: object) -> ProcessId:
    """Return the id of the execution for an idempotency key. Equal sandbox, key and request give the same id. Pure.

    If a request is repeated with the same key, the repetition therefore joins the execution of the first request. A different request with the same
    key gets another id and starts another execution. It is not refused, because the service keeps only the id of the first execution, not the first
    request.

    Args:
        sandbox: Sandbox of the execution. The sandbox is part of the id, because ids are unique in the whole service, and a client must not be
            able to choose the id of another client's execution.
        key: Key of the client.
        parts: Values that distinguish the request from other requests, see :func:`request_digest`.
    """
    return ProcessId(hashlib.blake2b(f"{sandbox}\0{check_key(key)}\0{request_digest(*parts)}".encode(), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An idempotency key and the digest of the request that was sent with it.

    Args:
        digest: SHA-256 of the request, in hexadecimal.
    """

    key: str
    digest: str

    def __post_init__(self) -> None:
        check_key(self.key)

    def check(self, earlier_digest: str | None) -> None:
        """Refuse the request if the earlier request with this key was different.

        Args:
            earlier_digest: Digest of the earlier request, from the record of its result.

        Raises:
            ConflictError: The digests differ.
        """
        if earlier_digest != self.digest:
            raise ConflictError(
                "A different request used this Idempotency-Key before.",
                hint="Use a new key, or repeat the first request without changes.",
                fields={"field": "Idempotency-Key"},
            )
