"""A sandbox as it sees itself."""

from __future__ import annotations

from fastapi import Request, Response

from sandlot import __version__
from sandlot.doors.tensorlake.inside.wire import HealthAnswer, InfoAnswer
from sandlot.doors.tensorlake.ways import INSIDE, inside
from sandlot.web.asking import node_of
from sandlot.web.bodies import reply


@INSIDE.route("GET", "/health")
async def health(request: Request) -> Response:
    """Whether it answers; whoever hears nothing of it hears why."""
    async with inside(request).connection() as link:
        await link.info()
    return reply(HealthAnswer(healthy=True))


@INSIDE.route("GET", "/info")
async def info(request: Request) -> Response:
    """How long it has run, and how many processes were started in it through the service."""
    sandbox = inside(request)
    known = await node_of(request).processes.list_in(sandbox)
    async with sandbox.connection() as link:
        uptime_s = (await link.info()).uptime_s
    running = sum(1 for process in known if process.running)
    return reply(InfoAnswer(version=__version__, uptime_secs=max(0, int(uptime_s)), running_processes=running, total_processes=len(known)))
