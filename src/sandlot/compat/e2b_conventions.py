"""Conventions of E2B's clients that the APIs of several vendors follow: E2B's own, and that of a vendor whose users run E2B's clients. Pure.

Invariant: The module knows no vendor's package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import Response

from sandlot.compat.common import rfc3339_ms
from sandlot.model.errors import InvalidRequestError
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import SandboxInfo, SandboxUsage
from sandlot.web import pagination

ENVD_VERSION: Final = "0.6.4"
"""Version of envd, from which clients derive its features: a default user from 0.4.0, CloseStdin from 0.5.2, uploads without a form from 0.5.7."""
CLIENT_ID: Final = "sandlot"
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Deadline of a sandbox that has no timeout."""
NEXT: Final = "x-next-token"
"""Header with the cursor of the next page. The last page does not have the header."""
RUNNING, PAUSED = "running", "paused"
"""States of sandboxes that clients know."""

_Item = TypeVar("_Item")


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


def parse_states(text: str | None) -> frozenset[str]:
    """Return the states by which a list is filtered. None: all states.

    Raises:
        InvalidRequestError: There is no such state.
    """
    states = frozenset({RUNNING, PAUSED}) if text is None else frozenset(text.split(","))
    if unknown := states - {RUNNING, PAUSED}:
        raise InvalidRequestError(f"There is no state {min(unknown)[:50]!r}.", hint="Use running or paused.", fields={"field": "state"})
    return states


def page_response(
    items: Sequence[_Item], limit: int, to_object: Callable[[_Item], Mapping[str, Any]], position: Callable[[_Item], Position]
) -> Response:
    """Return one page of a list as a response.

    Args:
        items: Items from the beginning of the page on; at least one more than the limit if there is another page.
        limit: Maximum number of items of the page.
        to_object: Returns the object of an item.
        position: Returns the position of an item in the list.
    """
    page = items[:limit]
    headers = {NEXT: pagination.encode_cursor(position(page[-1]))} if len(items) > len(page) else {}
    return e2b_json_response([to_object(item) for item in page], headers=headers)


def sandbox_position(sandbox: SandboxInfo) -> Position:
    """Return the position of a sandbox in a list by time."""
    return Position(sandbox.created_at, sandbox.id)


def metrics_object(measured: SandboxUsage, sandbox: SandboxInfo) -> dict[str, Any]:
    """Return the current metrics of a sandbox. Processor usage is the average since its creation."""
    usage, limits, now = measured.usage, measured.limits, sandbox.as_of
    age_s = max(0.001, (now - sandbox.created_at).total_seconds())
    return {
        "timestamp": rfc3339_ms(now),
        "timestampUnix": int(now.timestamp()),
        "cpuCount": max(1, round(limits.cpus)),
        "cpuUsedPct": round(100 * usage.cpu_s / age_s, 2),
        "memUsed": usage.memory_bytes,
        "memTotal": limits.memory_bytes,
        "memCache": 0,
        "diskUsed": usage.disk_bytes,
        "diskTotal": limits.disk_bytes,
    }


def is_in_period(sandbox: SandboxInfo, start: int | None, end: int | None) -> bool:
    """Return whether a period of metrics, in seconds since 1970, includes the time of a sandbox's metrics. None: no bound."""
    now = sandbox.as_of.timestamp()
    return (start or 0) <= now and (end is None or end >= int(now))
