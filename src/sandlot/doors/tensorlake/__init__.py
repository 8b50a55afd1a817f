"""Tensorlake. ``COVERAGE.md`` lists every call."""

from __future__ import annotations

from sandlot.doors.door import Door
from sandlot.doors.tensorlake import errors, routes

DOOR = Door(
    name="tensorlake",
    prefix="/tensorlake",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/howto/move-from-tensorlake.md of Sandlot says which of Tensorlake's calls there are.",
    raw=routes.RAW,
)
