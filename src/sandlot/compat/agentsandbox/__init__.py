"""AgentSandbox: code in new processes, sessions with a lasting ``/workspace``, a file store and an execution log.

The vendor's client is ``agentsandbox-sdk`` 0.1.0 of PyPI. ``COVERAGE.md`` lists every call.
"""

from __future__ import annotations

from sandlot.compat.agentsandbox import errors, routes
from sandlot.compat.vendor import VendorApi

API = VendorApi(
    name="agentsandbox",
    prefix="/agentsandbox",
    router=routes.router,
    table=errors.TABLE,
    body=errors.body,
    help="docs/explanation/compatibility-apis.md of Sandlot lists the supported calls of AgentSandbox.",
)
