"""AgentSandbox: ``run()`` in fresh processes, sessions with a ``/workspace`` that stays, a file store, an execution log.

What its client sends and expects is its package on PyPI, ``agentsandbox-sdk`` 0.1.0; ``COVERAGE.md`` lists every call.
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
    help="docs/doors.md of Sandlot says which of AgentSandbox's calls there are.",
)
