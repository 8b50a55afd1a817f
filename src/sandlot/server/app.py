"""The app: every route of every door, in one frame."""

from __future__ import annotations

from collections.abc import Collection
from types import ModuleType
from typing import TYPE_CHECKING

from fastapi import FastAPI

from sandlot import __version__
from sandlot.doors import agentsandbox, e2b, pandastack, sandbase, sandboxapi, tensorlake
from sandlot.doors.door import Below
from sandlot.server import pages
from sandlot.server.document import operation_id
from sandlot.server.native import files, filestore, keys, pools, processes, records, sandboxes, service, signed, terminals, trees
from sandlot.server.native.ports import tunnels
from sandlot.server.native.runs import code, contexts, oneshot, packages
from sandlot.server.native.saved import resting, snapshots
from sandlot.server.native.volumes import mounts, volumes
from sandlot.server.native.webhooks import webhooks
from sandlot.web import errors
from sandlot.web.errors import PROBLEMS
from sandlot.web.frame import Frame
from sandlot.web.telling import Tellers

if TYPE_CHECKING:
    from sandlot.server.compose import Service

DOORS = (agentsandbox.DOOR, e2b.DOOR, pandastack.DOOR, sandbase.DOOR, sandboxapi.DOOR, tensorlake.DOOR)
"""Each under its own prefix, and none of them in the API's document."""
TELLERS = Tellers(PROBLEMS, DOORS)

_ROOMS = (
    service,
    sandboxes,
    resting,
    snapshots,
    processes,
    terminals,
    tunnels,
    code,
    contexts,
    packages,
    oneshot,
    files,
    trees,
    signed,
    filestore,
    records,
    keys,
    pools,
    webhooks,
    volumes,
    mounts,
)


_FIRST = (service, code, processes)
"""What is asked for most: routes are tried one after another, each in about a microsecond."""


def create_app(serving: Service) -> FastAPI:
    """The ASGI app of a service.

    Args:
        serving: What it serves; :func:`sandlot.server.compose.open_service` makes one.
    """
    app = create_routes(first=_FIRST)
    app.state.service = serving
    app.state.core = serving.core
    app.add_middleware(
        Frame,
        keys=serving.keys,
        upload_max_bytes=serving.settings.upload_max_bytes,
        budget=serving.budget,
        metrics=serving.core.metrics,
        tellers=TELLERS,
        signatures=serving.core.signer,
        core=serving.core,
    )
    return app


def create_routes(first: Collection[ModuleType] = ()) -> FastAPI:
    """All routes, and nobody who answers: what the OpenAPI document is made from.

    Args:
        first: The rooms whose routes are tried before all others; the document has them in the order of ``_ROOMS``.
    """
    app = FastAPI(
        title="Sandlot",
        version=__version__,
        openapi_url=None,  # pages.py has it, and the page of it: FastAPI's loads scripts from a content network
        separate_input_output_schemas=False,
        redirect_slashes=False,  # DELETE of an empty name would be sent on to the list, and a client takes 307 for done
        generate_unique_id_function=operation_id,
        # Its logs would hold what a request held: code and environments.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    for door in DOORS:  # first, because each is passed by at its prefix
        app.include_router(Below(door.prefix, door.router), prefix=door.prefix, include_in_schema=False)
    for room in (*first, *(room for room in _ROOMS if room not in first)):
        app.include_router(room.router)
    for door in DOORS:
        if door.at_root is not None:
            app.include_router(door.at_root, include_in_schema=False)
    pages.install(app)
    errors.install(app, TELLERS)
    return app
