"""Routes of the Tensorlake API, below ``/tensorlake``. Those for the inside of a sandbox are also at the root of the port."""

from __future__ import annotations

from typing import Final

from sandlot.compat.tensorlake.addressing import root_router, router
from sandlot.compat.tensorlake.control import logs, pools, sandboxes, snapshots
from sandlot.compat.tensorlake.runtime import files, processes, terminals, tunnels
from sandlot.compat.vendor import not_supported

__all__ = ["authenticate", "root_router", "router"]

MODULES: Final = (processes, files, terminals, tunnels, sandboxes, snapshots, pools, logs)
"""Modules whose import adds their routes to the routers."""

authenticate = terminals.authenticate

_TEMPLATES: Final = "Use an existing template: GET /v1/templates."
_APPLICATIONS: Final = "Run functions as commands in a sandbox."
_SECRETS: Final = "Pass secrets as the environment of the processes that need them."
for _method, _path, _hint in (
    ("GET", "/platform/v1/sandbox-templates", _TEMPLATES),
    ("POST", "/platform/v1/sandbox-templates", _TEMPLATES),
    ("GET", "/v1/namespaces/default/applications", _APPLICATIONS),
    ("POST", "/v1/namespaces/default/applications", _APPLICATIONS),
    ("GET", "/v1/namespaces/default/secrets", _SECRETS),
    ("POST", "/v1/namespaces/default/secrets", _SECRETS),
):
    not_supported(router, _method, _path, _hint)
