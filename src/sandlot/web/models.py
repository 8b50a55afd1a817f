"""What all bodies, queries and answers have in common, ours and a vendor's. Requests are strict: no unknown field, no silent conversion.

Law: However much of a request is wrong, a few of its errors are looked for: each one costs a kilobyte and more until it is told.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Response
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_ERRORS = 20
"""Of one kind in one place."""


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("This is not valid Unicode text: it has a lone surrogate. Pass binary content as a file.") from None
    return text


def _is_unicode(text: object) -> bool:
    """Whether it is text that UTF-8 can carry."""
    try:
        return isinstance(text, str) and (text.isascii() or bool(text.encode()))
    except UnicodeEncodeError:
        return False


def _few_errors(words: object) -> object:
    """Words as they are; where some are wrong, a few of those alone, which fail like all of them."""
    if not isinstance(words, dict):
        return words
    wrong = islice((name for name, text in words.items() if not (_is_unicode(name) and _is_unicode(text))), MAX_ERRORS)
    return {name: words[name] for name in wrong} or words


Text = Annotated[str, AfterValidator(_unicode)]
"""Text that UTF-8 can carry: JSON's escapes can spell lone surrogates (RFC 8259, 8.2)."""

Metadata = Annotated[dict[Text, Text], BeforeValidator(_few_errors)]
"""Names and their texts."""

Texts = Annotated[list[Text], Field(fail_fast=True)]


class _NoExtraFields(BaseModel):
    """What has no other fields than its own."""

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, given: object) -> object:
        if not isinstance(given, dict) or len(given) <= len(cls.model_fields) + MAX_ERRORS:
            return given
        known = {name: value for name, value in given.items() if name in cls.model_fields}
        return known | {name: given[name] for name in islice((name for name in given if name not in known), MAX_ERRORS)}


class RequestModel(_NoExtraFields):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class QueryModel(_NoExtraFields):
    """A request's query; its values are text, so they are converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ResponseModel(BaseModel):
    """A response's body."""

    model_config = ConfigDict(frozen=True)


def json_response(model: ResponseModel, status: int = 200) -> Response:
    """A model as a response, encoded once."""
    # Straight to bytes: an answer may hold megabytes of output, and model_dump_json() would make them twice.
    return Response(model.__pydantic_serializer__.to_json(model), status_code=status, media_type="application/json")
