"""Tensorlake: sandboxes, snapshots and warm pools, and the inside of a sandbox as an API of its own.

What its client sends and expects is its package on PyPI, ``tensorlake`` 0.5.162; ``COVERAGE.md`` lists every call.
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
    help="docs/how-to/move-from-tensorlake.md of Sandlot says which of Tensorlake's calls there are.",
    root_router=routes.root_router,
    authenticate=routes.admit,
)
