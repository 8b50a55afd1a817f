"""The ``Idempotency-Key`` header of routes that start something in a sandbox: a request that repeats a key joins what the first one started."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header
from pydantic import BaseModel

from sandlot.core.access.idempotency import execution_id
from sandlot.model.ids import ProcessId, SandboxId

Key = Annotated[
    str | None,
    Header(description="Your own name for this request, for example a UUID: sent again with it, the same request joins what it began before."),
]
"""The header of a route, by the name ``idempotency_key``."""


def named(sandbox: SandboxId, key: str | None, body: BaseModel) -> ProcessId | None:
    """Return the id of what a request starts, or None if the request has no key.

    Raises:
        InvalidRequestError: The key is invalid.
    """
    return None if key is None else execution_id(sandbox, key, body.model_dump_json())
