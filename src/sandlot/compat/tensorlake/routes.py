"""The routes of Tensorlake's API, below ``/tensorlake``; those of the inside of sandboxes are at the root of the port as well."""

from __future__ import annotations

from sandlot.compat.tensorlake.addressing import root_router, router
from sandlot.compat.tensorlake.control import logs, pools, sandboxes, snapshots
from sandlot.compat.tensorlake.runtime import daemon, files, processes, terminals, tunnels
from sandlot.compat.vendor import not_supported

__all__ = ["admit", "root_router", "router"]

ROOMS = (processes, files, terminals, tunnels, daemon, sandboxes, snapshots, pools, logs)
"""Each has put its routes where they are asked for."""

admit = terminals.admit

_NO_IMAGES = "Use one of the templates that there are: GET /v1/templates."
for _method, _path, _why in (
    ("GET", "/platform/v1/sandbox-templates", _NO_IMAGES),
    ("POST", "/platform/v1/sandbox-templates", _NO_IMAGES),
    ("GET", "/v1/namespaces/default/applications", "Run functions as commands in a sandbox."),
    ("POST", "/v1/namespaces/default/applications", "Run functions as commands in a sandbox."),
    ("GET", "/v1/namespaces/default/secrets", "Give secrets as the environment of what needs them."),
    ("POST", "/v1/namespaces/default/secrets", "Give secrets as the environment of what needs them."),
):
    not_supported(router, _method, _path, _why)
