"""Sandbase: sandboxes, commands and files by plain HTTP, lifecycle events and webhooks. ``COVERAGE.md`` lists every call.

The vendor publishes no client. Its documentation shows programs with ``requests``, which ``tests/compat/sandbase`` runs, and E2B's client.
"""

from __future__ import annotations

from sandlot.compat.sandbase import errors, routes, webhook_payload
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="sandbase",
    prefix="/sandbase",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/how-to/move-from-sandbase.md of Sandlot lists the supported calls of Sandbase.",
    webhook_payload=webhook_payload.event,
)
