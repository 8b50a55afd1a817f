"""What all bodies, queries and answers have in common. Requests are strict: no unknown field, no silent conversion."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict


def _unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("This is not valid Unicode text: it has a lone surrogate. Pass binary content as a file.") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]
"""Text that UTF-8 can carry: JSON's escapes can spell lone surrogates (RFC 8259, 8.2)."""

UserName = Literal["user", "root"]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Query(BaseModel):
    """A request's query; its values are text, so they are converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """A response's body."""

    model_config = ConfigDict(frozen=True)
