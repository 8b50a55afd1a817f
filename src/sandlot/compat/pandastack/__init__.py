"""PandaStack: sandboxes, forks, commands, code sessions, files, snapshots and volumes. ``COVERAGE.md`` lists every call."""

from __future__ import annotations

from sandlot.compat.pandastack import errors, routes
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="pandastack",
    prefix="/pandastack",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/how-to/move-from-pandastack.md of Sandlot lists the supported calls of PandaStack.",
)
