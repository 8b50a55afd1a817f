"""The app: every route of every door, in one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from sandlot import __version__
from sandlot.server.native import code, files, processes, sandboxes, service
from sandlot.web import errors
from sandlot.web.frame import Frame

if TYPE_CHECKING:
    from sandlot.server.compose import Service

_ROOMS = (service, sandboxes, processes, code, files)


def create_app(serving: Service) -> FastAPI:
    """The ASGI app of a service.

    Args:
        serving: What it serves; :func:`sandlot.server.compose.open_service` makes one.
    """
    app = FastAPI(
        title="Sandlot",
        version=__version__,
        description="A safe place for AI agents to run code.",
        docs_url=None,  # the pages that FastAPI has load scripts from a content network
        redoc_url=None,
        separate_input_output_schemas=False,
        # Its logs would hold what a request held: code and environments.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.service = serving
    app.state.core = serving.core
    for room in _ROOMS:
        app.include_router(room.router)
    errors.install(app)
    app.add_middleware(Frame, keys=serving.keys, upload_max_bytes=serving.settings.upload_max_bytes, budget=serving.budget)
    return app
