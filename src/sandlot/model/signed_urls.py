"""Signed URLs, each for one file of a sandbox, and the scopes of sandbox tokens."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandlot.model.specs import User

URL_METHODS: Final = ("GET", "PUT")
"""HTTP methods for which a URL can be signed."""

DEFAULT_URL_LIFETIME_S: Final = 3600.0

MAX_URL_LIFETIME_S: Final = 7 * 24 * 3600.0
"""Longest lifetime of a signed URL: 7 days, as with presigned URLs of Amazon S3."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to access one file of a sandbox, for which a URL is signed.

    Args:
        method: One of ``URL_METHODS``: ``GET`` to read the file, ``PUT`` to write it.
        sandbox: Id of the sandbox.
        path: Absolute path inside the sandbox.
        user: User that reads or writes the file. None: that of the sandbox.
        lifetime_s: Seconds until the URL expires, 1 to 604,800.
    """

    method: str
    sandbox: str
    path: str
    user: User | None = None
    lifetime_s: float = DEFAULT_URL_LIFETIME_S


class TokenScope(StrEnum):
    """Requests that a sandbox token allows."""

    SANDBOX = "sandbox"
    """All requests about the sandbox."""
    TERMINALS = "terminals"
    """Connections to terminals of the sandbox."""


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """A signed URL.

    Args:
        query: Query of the URL.
        expires_at: Time of expiry, UTC.
    """

    query: str
    expires_at: datetime
