"""What E2B's clients say and are told at more than one door: E2B's own, and that of a vendor whose clients they serve as well. Pure.

Law: It knows nothing of any door.
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
"""Which of envd's abilities clients count on: from 0.4.0 on a default user, from 0.5.2 CloseStdin, from 0.5.7 bodies that are no form."""
CLIENT_ID: Final = "sandlot"
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""When a sandbox ends that has no timeout."""
NEXT: Final = "x-next-token"
"""The header that says where a list goes on; without it the list is at its end."""


def told(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401 - JSON
    """JSON as a response."""
    content = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")


def metadata_filter(text: str) -> dict[str, str]:
    """What a list is to be filtered by, as clients encode it: each name and value, both together, and the whole as any query is.

    Raises:
        InvalidRequestError: It is no query.
    """
    entries: dict[str, str] = {}
    for pair in filter(None, text.split("&")):
        name, mark, value = pair.partition("=")
        if not mark:
            raise InvalidRequestError(
                "The filter by metadata is not NAME=VALUE, joined by &.", hint="For example metadata=user%3Dalice.", fields={"field": "metadata"}
            )
        entries[unquote(unquote(name))] = unquote(unquote(value))
    return entries
