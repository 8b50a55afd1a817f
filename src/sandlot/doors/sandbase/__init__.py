"""Sandbase. ``COVERAGE.md`` lists every call."""

from __future__ import annotations

from sandlot.doors.door import Door
from sandlot.doors.sandbase import errors, routes

DOOR = Door(
    name="sandbase",
    prefix="/sandbase",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/howto/move-from-sandbase.md of Sandlot says which of Sandbase's calls there are.",
    raw=routes.RAW,
)
