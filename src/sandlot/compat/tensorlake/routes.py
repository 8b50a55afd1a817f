"""Routes of the Tensorlake API, below ``/tensorlake``. Those for the inside of a sandbox are also at the root of the port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandlot.compat.tensorlake.addressing import root_router, router
from sandlot.compat.tensorlake.control import images, logs, pools, sandboxes, snapshots
from sandlot.compat.tensorlake.runtime import files, processes, terminals, tunnels
from sandlot.compat.vendor import not_supported
from sandlot.core.node import Node
from sandlot.model.access import Principal

__all__ = ["authenticate", "root_router", "router"]

MODULES: Final = (processes, files, terminals, tunnels, sandboxes, snapshots, pools, logs, images)
"""Modules whose import adds their routes to the routers."""


async def authenticate(scope: Mapping[str, Any], node: Node) -> Principal | None:
    """Return the principal of a request with a token of a terminal or the link of an upload; None if it has neither.

    Raises:
        ForbiddenError: The link of an upload is invalid or has expired.
    """
    return await images.authenticate(scope, node) or await terminals.authenticate(scope, node)


_IMAGES: Final = "Build the image on the server: omit cas=False."
_APPLICATIONS: Final = "Run functions as commands in a sandbox."
_SECRETS: Final = "Pass secrets as the environment of the processes that need them."
for _method, _path, _hint in (
    ("POST", "/platform/v1/sandbox-templates", _IMAGES),
    ("POST", "/platform/v1/sandbox-template-builds", _IMAGES),
    ("GET", "/v1/namespaces/default/applications", _APPLICATIONS),
    ("POST", "/v1/namespaces/default/applications", _APPLICATIONS),
    ("GET", "/v1/namespaces/default/secrets", _SECRETS),
    ("POST", "/v1/namespaces/default/secrets", _SECRETS),
):
    not_supported(router, _method, _path, _hint)
