"""SandboxAPI: programs that are run once and graded, and sessions that keep variables, files and packages.

The vendor's only published client is an MCP server, which calls ``/v1/execute`` and ``/v1/languages``. The other calls follow its documentation.
``sandlot.sdk.compat.sandboxapi`` is a client of this API. ``COVERAGE.md`` lists every call.
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
    help="docs/explanation/compatibility-apis.md of Sandlot lists the supported calls of SandboxAPI.",
)
