"""Cursors of pages that are ordered by time: a place between two rows, as one word that clients give back unread."""

from __future__ import annotations

import base64
from datetime import datetime

from sandlot.model.errors import InvalidRequestError
from sandlot.model.repositories import Position


def encode_cursor(position: Position) -> str:
    """A place as a cursor."""
    return base64.urlsafe_b64encode(f"{position.at.isoformat(timespec='microseconds')}~{position.id}".encode()).decode()


def decode_cursor(cursor: str | None) -> Position | None:
    """The place that a cursor says.

    Raises:
        InvalidRequestError: It is none.
    """
    if cursor is None:
        return None
    try:
        at, mark, id_ = base64.b64decode(cursor, altchars=b"-_", validate=True).decode().partition("~")
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise _invalid_cursor() from None
    if not mark or moment.tzinfo is None:
        raise _invalid_cursor()
    return Position(moment, id_)


def _invalid_cursor() -> InvalidRequestError:
    return InvalidRequestError("The cursor is not one.", hint="Use next_cursor of the page before.", fields={"field": "cursor"})
