"""Tensorlake: sandboxes, snapshots and pools, and an API of its own for the inside of a sandbox.

The vendor's client is ``tensorlake`` 0.5.162 of PyPI. ``COVERAGE.md`` lists every call.
"""

from __future__ import annotations

from sandlot.compat.tensorlake import errors, routes
from sandlot.compat.tensorlake.addressing import PREFIX
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="tensorlake",
    prefix=PREFIX,
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/how-to/move-from-tensorlake.md of Sandlot lists the supported calls of Tensorlake.",
    root_router=routes.root_router,
    authenticate=routes.authenticate,
)
