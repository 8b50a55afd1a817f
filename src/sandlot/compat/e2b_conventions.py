"""Conventions of E2B's clients that the APIs of several vendors follow: E2B's own, and that of a vendor whose users run E2B's clients. Pure.

Invariant: The module knows no vendor's package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from fastapi import Response

from sandlot.model.errors import InvalidRequestError

ENVD_VERSION: Final = "0.6.4"
"""Version of envd, from which clients derive its features: a default user from 0.4.0, CloseStdin from 0.5.2, uploads without a form from 0.5.7."""
CLIENT_ID: Final = "sandlot"
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Deadline of a sandbox that has no timeout."""
NEXT: Final = "x-next-token"
"""Header with the cursor of the next page. The last page does not have the header."""


def e2b_json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401 - JSON
    """Return JSON as a response. Text that is not valid UTF-8 is replaced."""
    encoded = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(encoded, status_code=status, headers=dict(headers or {}), media_type="application/json")


def metadata_filter(text: str) -> dict[str, str]:
    """Return the metadata by which a list is filtered. Clients encode each name and value, then both, then the whole query.

    Raises:
        InvalidRequestError: The text is not a query.
    """
    entries: dict[str, str] = {}
    for pair in filter(None, text.split("&")):
        name, separator, value = pair.partition("=")
        if not separator:
            raise InvalidRequestError(
                "The metadata filter is not a list of NAME=VALUE joined by &.",
                hint="Pass for example metadata=user%3Dalice.",
                fields={"field": "metadata"},
            )
        entries[unquote(unquote(name))] = unquote(unquote(value))
    return entries
