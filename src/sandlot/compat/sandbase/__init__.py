"""Sandbase: sandboxes, commands and files by plain HTTP, lifecycle events and webhooks. ``COVERAGE.md`` lists every call.

No client is published; its documentation shows programs with ``requests``, and these are what ``tests/compat/sandbase`` runs.
"""

from __future__ import annotations

from sandlot.compat.sandbase import errors, routes
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="sandbase",
    prefix="/sandbase",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/howto/move-from-sandbase.md of Sandlot says which of Sandbase's calls there are.",
)
