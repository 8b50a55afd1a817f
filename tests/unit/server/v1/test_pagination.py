"""Lists with pages: one rule for invalid cursors."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import httpx
import pytest

INVALID = ("", "x", "eA==", "-1", "٣", *(base64.b64encode(text).decode() for text in (b"2026-01-01T00:00:00~x", b"soon~x")))
DOCUMENT = json.loads((Path(__file__).parents[4] / "docs" / "openapi.json").read_text(encoding="utf-8"))
PATHS = sorted(
    path
    for path, operations in DOCUMENT["paths"].items()
    if any(parameter.get("name") == "cursor" for parameter in operations.get("get", {}).get("parameters", ()))
)


def test_every_list_with_a_next_cursor_is_here() -> None:
    names = ("agent-sessions", "agents", "events", "executions", "files", "keys", "sandboxes", "snapshots", "templates/{template}/builds")
    assert [f"/v1/{name}" for name in names] == PATHS


@pytest.mark.parametrize("path", PATHS)
async def test_invalid_cursor_is_a_bad_request(http: httpx.AsyncClient, path: str) -> None:
    for cursor in INVALID:
        answer = await http.get(path, params={"cursor": cursor})
        assert (answer.status_code, answer.json()["code"], answer.json()["fields"]) == (400, "invalid_request", {"field": "cursor"}), answer.text
