"""Base classes of the models of requests and responses, native and vendor. Requests are strict: no unknown field, no silent conversion.

Invariant: A request reports a limited number of errors, however many it has: each one takes more than a kilobyte of memory until it is reported.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_ERRORS = 20
"""Errors of one kind in one place."""


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("This is not valid Unicode text: it has a lone surrogate. Pass binary content as a file.") from None
    return text


def _is_unicode(text: object) -> bool:
    try:
        return isinstance(text, str) and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:
        return False


def _few_errors(metadata: object) -> object:
    """Return only a few of the invalid entries if there are invalid ones, otherwise all entries."""
    if not isinstance(metadata, dict):
        return metadata
    invalid = islice((name for name, text in metadata.items() if not (_is_unicode(name) and _is_unicode(text))), MAX_ERRORS)
    return {name: metadata[name] for name in invalid} or metadata


Text = Annotated[str, AfterValidator(_unicode)]
"""Text that UTF-8 can encode: JSON's escapes can spell lone surrogates (RFC 8259, 8.2)."""

Metadata = Annotated[dict[Text, Text], BeforeValidator(_few_errors)]
"""Key-value pairs of the user."""

Texts = Annotated[list[Text], Field(fail_fast=True)]


class _NoExtraFields(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, values: object) -> object:
        """Drop unknown fields after the first few, so that each of the rest does not become an error."""
        if not isinstance(values, dict) or len(values) <= len(cls.model_fields) + MAX_ERRORS:
            return values
        known = {name: value for name, value in values.items() if name in cls.model_fields}
        return known | {name: values[name] for name in islice((name for name in values if name not in known), MAX_ERRORS)}


class RequestModel(_NoExtraFields):
    """Base of request bodies."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryModel(_NoExtraFields):
    """Base of query parameters. The values arrive as text and are converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """Base of response bodies."""

    model_config = ConfigDict(frozen=True)


def json_response(model: ResponseModel, status: int = 200) -> Response:
    """Return a response with a model as its body."""
    # Straight to bytes: a response may contain megabytes of output, and model_dump_json() would encode them twice.
    return Response(model.__pydantic_serializer__.to_json(model), status_code=status, media_type="application/json")
