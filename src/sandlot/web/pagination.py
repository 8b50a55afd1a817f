"""Cursors of pages that are ordered by time: a position between two rows, as an opaque string. The only module that knows their format."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Protocol, TypeVar

from sandlot.model.errors import InvalidRequestError
from sandlot.model.repositories import Position
from sandlot.model.streams import Page


class Listed(Protocol):
    """An item of a list that is ordered by time."""

    @property
    def created_at(self) -> datetime:
        """Time by which the list is ordered."""
        ...

    @property
    def id(self) -> str:
        """Id, by which items of the same time are ordered."""
        ...


ListedT = TypeVar("ListedT", bound=Listed)


def next_cursor(page: Page[ListedT]) -> str | None:
    """Return the cursor of the page after a page; None after the last page."""
    return encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None


def encode_cursor(position: Position) -> str:
    """Return a position as a cursor."""
    return base64.urlsafe_b64encode(f"{position.at.isoformat(timespec='microseconds')}~{position.id}".encode()).decode()


def decode_cursor(cursor: str | None) -> Position | None:
    """Return the position of a cursor.

    Raises:
        InvalidRequestError: The cursor is not valid.
    """
    if cursor is None:
        return None
    try:
        at, separator, id_ = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition("~")
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise _invalid_cursor(cursor) from None
    if not separator or moment.tzinfo is None:
        raise _invalid_cursor(cursor)
    return Position(moment, id_)


def _invalid_cursor(cursor: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"`cursor` {cursor[:64]!r} is not valid.", hint="Pass `next_cursor` from the previous page.", fields={"field": "cursor"}
    )
