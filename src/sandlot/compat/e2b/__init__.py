"""E2B. ``COVERAGE.md`` lists every call."""

from __future__ import annotations

from sandlot.compat.e2b import access, errors, routes
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="e2b",
    prefix=access.PREFIX,
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/how-to/move-from-e2b.md of Sandlot says which of E2B's calls there are.",
    root_router=routes.ROOT,
    authenticate=access.admit,
    headers=errors.headers,
)
