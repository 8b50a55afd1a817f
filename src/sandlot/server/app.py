"""The app: every route of every door, in one frame."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import BaseRoute

from sandlot import __version__
from sandlot.doors import agentsandbox, e2b, pandastack, sandbase, sandboxapi, tensorlake
from sandlot.doors.door import Below
from sandlot.server import docs_page
from sandlot.server.openapi import operation_id
from sandlot.server.v1 import (
    code,
    contexts,
    events,
    executions,
    file_store,
    files,
    keys,
    lifecycle,
    packages,
    pools,
    processes,
    programs,
    sandboxes,
    service,
    snapshots,
    templates,
    terminals,
    tunnels,
    volumes,
    watches,
    webhooks,
)
from sandlot.web import errors
from sandlot.web.error_formats import ErrorFormatSelector
from sandlot.web.errors import PROBLEM_FORMAT
from sandlot.web.middleware import RequestMiddleware

if TYPE_CHECKING:
    from sandlot.server.composition import RunningService

DOORS = (agentsandbox.DOOR, e2b.DOOR, pandastack.DOOR, sandbase.DOOR, sandboxapi.DOOR, tensorlake.DOOR)
"""Each under its own prefix, and none of them in the API's document."""
TELLERS = ErrorFormatSelector(PROBLEM_FORMAT, DOORS)

_ROOMS = (
    service,
    templates,
    sandboxes,
    lifecycle,
    snapshots,
    processes,
    terminals,
    tunnels,
    code,
    contexts,
    packages,
    programs,
    files,
    watches,
    file_store,
    events,
    executions,
    keys,
    pools,
    webhooks,
    volumes,
)


_FIRST = (service, code, processes)
"""What is asked for most: routes are tried one after another, each in about a microsecond."""


def create_app(serving: RunningService) -> FastAPI:
    """The ASGI app of a service.

    Args:
        serving: What it serves; :func:`sandlot.server.composition.open_service` makes one.
    """
    app = _empty_app()
    app.router.routes.extend(_served_routes())
    app.state.service = serving
    app.state.node = serving.node
    app.add_middleware(
        RequestMiddleware,
        keys=serving.api_keys,
        upload_max_bytes=serving.settings.upload_max_bytes,
        buffers=serving.node.buffers,
        metrics=serving.metrics,
        error_formats=TELLERS,
        signatures=serving.node.tokens,
        node=serving.node,
    )
    return app


def create_routes() -> FastAPI:
    """Return an app with all routes and no service, from which the OpenAPI document is made."""
    app = _empty_app()
    _include_vendors(app)
    for room in _ROOMS:
        app.include_router(room.router)
    for door in DOORS:
        if door.at_root is not None:
            app.include_router(door.at_root, include_in_schema=False)
    docs_page.install(app, lambda: app.routes)
    return app


@functools.cache
def _served_routes() -> tuple[BaseRoute, ...]:
    """Return the routes in the order in which a request is matched.

    They hold nothing of a service, so all services of a process share them. Routes without a prefix are taken as they are: FastAPI builds each
    route of an included router a second time, at the first request, which takes 0.2 s for all of them.
    """
    app = _empty_app()
    _include_vendors(app)
    rooms = [room.router for room in (*_FIRST, *(room for room in _ROOMS if room not in _FIRST))]
    for router in (*rooms, *(door.at_root for door in DOORS if door.at_root is not None)):
        app.router.routes.extend(router.routes)
    docs_page.install(app, lambda: create_routes().routes)
    return tuple(app.routes)


def _include_vendors(app: FastAPI) -> None:
    for door in DOORS:  # first, because each is passed by at its prefix
        app.include_router(Below(door.prefix, door.router), prefix=door.prefix, include_in_schema=False)


def _empty_app() -> FastAPI:
    app = FastAPI(
        title="Sandlot",
        version=__version__,
        openapi_url=None,  # docs_page.py has it, and the page of it: FastAPI's loads scripts from a content network
        separate_input_output_schemas=False,
        redirect_slashes=False,  # DELETE of an empty name would be sent on to the list, and a client takes 307 for done
        generate_unique_id_function=operation_id,
        # Its logs would hold what a request held: code and environments.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    errors.install_error_handlers(app, TELLERS)
    return app
