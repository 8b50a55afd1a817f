"""E2B: control plane, envd and code interpreter. ``COVERAGE.md`` lists every call."""

from __future__ import annotations

from sandlot.compat.e2b import access, errors, routes
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="e2b",
    prefix=access.PREFIX,
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/how-to/move-from-e2b.md of Sandlot lists the supported calls of E2B.",
    root_router=routes.root_router,
    authenticate=access.authenticate,
    servers=access.SERVERS,
    headers=errors.headers,
)
