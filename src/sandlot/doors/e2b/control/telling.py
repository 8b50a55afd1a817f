"""Answers of the control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Response

NEXT = "x-next-token"
"""The header that says where a list goes on; without it the list is at its end."""


def told(answer: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:  # noqa: ANN401 - JSON
    """JSON as a response."""
    content = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")
