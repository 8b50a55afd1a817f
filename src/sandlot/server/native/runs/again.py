"""Requests that are sent again: what an ``Idempotency-Key`` names in a sandbox. The same request under it has the same id, so it joins.

Another request under the same key has another id: it is begun, because nothing of the first one is remembered but its id.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

from fastapi import Header
from pydantic import BaseModel

from sandlot.core.access.idempotency import check_key
from sandlot.model.ids import ProcessId, SandboxId

Key = Annotated[
    str | None,
    Header(description="Your own name for this request, for example a UUID: sent again with it, the same request joins what it began before."),
]
"""The header of a route, by the name ``idempotency_key``."""


def named(sandbox: SandboxId, key: str | None, body: BaseModel) -> ProcessId | None:
    """The id of what a request begins; None where nobody named it.

    Raises:
        InvalidRequestError: The key is none.
    """
    return None if key is None else joined(sandbox, check_key(key), body.model_dump_json())


def joined(sandbox: SandboxId, key: str, request: str) -> ProcessId:
    """The id of the run that a key names: the same for the same request, in one sandbox. Pure.

    Args:
        sandbox: Where; ids of runs are unique in the whole service, and a client must not choose somebody else's.
        key: The client's.
        request: All that it asks for.
    """
    return ProcessId(hashlib.blake2b(f"{sandbox}\0{key}\0{request}".encode(), digest_size=16).hexdigest())
