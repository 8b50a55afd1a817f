"""A sandbox as it sees itself."""

from __future__ import annotations

from fastapi import Request, Response

from sandlot import __version__
from sandlot.compat.tensorlake.addressing import INSIDE, inside
from sandlot.compat.tensorlake.runtime.schemas import HealthAnswer, InfoAnswer
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.models import json_response

CHECK_S = 60.0
"""How long a sandbox may take to answer."""


@INSIDE.route("GET", "/health")
async def health(request: Request) -> Response:
    """Whether it answers; whoever hears nothing of it hears why."""
    await get_node(request).sandboxes.check(get_principal(request), await inside(request), timeout_s=CHECK_S)
    return json_response(HealthAnswer(healthy=True))


@INSIDE.route("GET", "/info")
async def info(request: Request) -> Response:
    """How long it has run, and how many processes were started in it through the service."""
    node, principal, sandbox = get_node(request), get_principal(request), await inside(request)
    known = await node.processes.list(principal, sandbox)
    status = await node.sandboxes.check(principal, sandbox, timeout_s=CHECK_S)
    running = sum(1 for process in known if process.running)
    return json_response(
        InfoAnswer(version=__version__, uptime_secs=max(0, int(status.uptime_s)), running_processes=running, total_processes=len(known))
    )
