"""What all bodies, queries and answers of the API have: those of ``web/models.py``, and why something was not done."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sandlot.model.errors import ErrorCode
from sandlot.web.models import MAX_ERRORS, Metadata, QueryModel, RequestModel, ResponseModel, Text, Texts

__all__ = ["MAX_ERRORS", "Metadata", "Problem", "QueryModel", "RequestModel", "ResponseModel", "Text", "Texts", "UserName"]

UserName = Literal["user", "root"]


class Problem(ResponseModel):
    """Why something was not done (RFC 9457)."""

    type: str = Field(description="Always about:blank; ``code`` tells problems apart.")
    title: str = Field(description="The status in words.", examples=["Not Found"])
    status: int = Field(description="As in the answer's head.", examples=[404])
    detail: str = Field(description="What happened, for a person.", examples=["There is no sandbox sb-k3v9-x2m4c7qpl5tnbdwy."])
    code: str = Field(description=f"Stable. By now: {', '.join(ErrorCode)}. A newer service may have others.", examples=["sandbox_not_found"])
    hint: str = Field(description="What to do next; empty where ``detail`` says it.")
    retryable: bool = Field(description="Whether the same request may succeed later without a change; Retry-After says when.")
    request_id: str = Field(description="Stands in the service's log as well.")
    fields: dict[str, Any] = Field(description="Details for programs; which ones depends on ``code``.")
