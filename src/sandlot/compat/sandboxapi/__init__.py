"""SandboxAPI: programs that are run once and graded, and sessions in which variables, files and packages stay.

No client of the vendor's is published but an MCP server, which speaks to ``/v1/execute`` and ``/v1/languages``; what callers send and expect
beyond these is its documentation's. ``COVERAGE.md`` lists every call; ``sandlot.sdk.compat.sandboxapi`` is a client of this door.
"""

from __future__ import annotations

from sandlot.compat.sandboxapi import errors, routes
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="sandboxapi",
    prefix="/sandboxapi",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/doors.md of Sandlot says which of SandboxAPI's calls there are.",
)
