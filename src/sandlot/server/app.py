"""The ASGI application: the routes of the native API and of all compatibility APIs, behind one middleware."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from sandlot import __version__
from sandlot.agents.service.limits import HostedRunLimits
from sandlot.agents.service.models import Models
from sandlot.agents.service.runtime import AgentRuntime
from sandlot.builds.dependencies import BuildRunner
from sandlot.compat.vendor import PrefixRouter
from sandlot.mcp.http import McpEndpoint, McpService
from sandlot.server import docs_page
from sandlot.server.openapi import operation_id
from sandlot.server.v1 import (
    agent_sessions,
    agents,
    code,
    contexts,
    events,
    executions,
    file_store,
    files,
    keys,
    lifecycle,
    network,
    packages,
    pools,
    previews,
    processes,
    programs,
    sandboxes,
    service,
    snapshots,
    template_builds,
    templates,
    terminals,
    tunnels,
    volumes,
    watches,
    webhooks,
)
from sandlot.server.vendors import VENDORS
from sandlot.web import errors
from sandlot.web.body_limits import BodyLimits
from sandlot.web.error_formats import ErrorFormatSelector
from sandlot.web.errors import PROBLEM_FORMAT
from sandlot.web.json_body import JsonParser
from sandlot.web.middleware import RequestMiddleware
from sandlot.web.preview_urls import PreviewAddresses
from sandlot.web.request_turns import RequestTurns
from sandlot.web.route_table import RouteEntry, route_entries

if TYPE_CHECKING:
    from sandlot.server.composition import RunningService

ERROR_FORMATS = ErrorFormatSelector(PROBLEM_FORMAT, VENDORS)

MCP_ROUTE = Route("/mcp", McpEndpoint("sandlot.mcp.http_sessions"), methods=["GET", "POST", "DELETE"])

_RESOURCES = (
    service,
    templates,
    template_builds,
    sandboxes,
    lifecycle,
    snapshots,
    processes,
    terminals,
    tunnels,
    previews,
    network,
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
    agents,
    agent_sessions,
)


_FIRST = (service, code, processes)
"""Resources with the most requests. Routes are tried one after another, each in about a microsecond."""


def create_app(
    service: RunningService,
    turns: RequestTurns | None = None,
    preview_addresses: PreviewAddresses | None = None,
    runtime: AgentRuntime | None = None,
    builds: BuildRunner | None = None,
) -> FastAPI:
    """Return the ASGI application of a service.

    Args:
        service: The service.
        turns: Turns of the requests of the service. None: turns of this app alone.
        preview_addresses: Address of the previews. None: there are no previews.
        runtime: Runs agents. None: a runtime without models.
        builds: Runs builds of templates. None: the service builds no templates.
    """
    app = _empty_app()
    app.router.routes.extend(_served_routes())
    errors.install_error_handlers(app, ERROR_FORMATS, route_table())
    app.state.service = service
    app.state.node = service.node
    app.state.previews = preview_addresses
    app.state.agents = runtime or AgentRuntime(service.node, Models({}), HostedRunLimits(), preview_addresses)
    app.state.builds = builds
    app.state.uploads = service.uploads
    app.state.mcp = McpService(service.stop, service.settings.mcp_allowed_hosts)
    app.state.json_parser = JsonParser()
    app.add_middleware(
        RequestMiddleware,
        keys=service.api_keys,
        body_limits=BodyLimits(route_table(), upload_max_bytes=service.settings.upload_max_bytes),
        buffers=service.node.buffers,
        metrics=service.metrics,
        turns=turns or RequestTurns(),
        error_formats=ERROR_FORMATS,
        signatures=service.node.tokens,
        node=service.node,
    )
    return app


def create_routes() -> FastAPI:
    """Return an application that has all routes, but no service to answer requests. The OpenAPI document is made from its routes."""
    app = _empty_app()
    _include_vendors(app)
    for resource in _RESOURCES:
        app.include_router(resource.router)
    for vendor in VENDORS:
        if vendor.root_router is not None:
            app.include_router(vendor.root_router, include_in_schema=False)
    docs_page.install(app, lambda: app.routes)
    return app


@functools.cache
def _served_routes() -> tuple[BaseRoute, ...]:
    """Return the routes in the order in which a request is matched.

    Routes have no state of a service, so all services of a process share them. Routes without a prefix are added as they are: FastAPI would build
    each route of an included router again at the first request, which takes 0.2 s for all of them.
    """
    app = _empty_app()
    _include_vendors(app)
    routers = [resource.router for resource in (*_FIRST, *(resource for resource in _RESOURCES if resource not in _FIRST))]
    for router in (*routers, *(vendor.root_router for vendor in VENDORS if vendor.root_router is not None)):
        app.router.routes.extend(router.routes)
    app.router.routes.append(MCP_ROUTE)
    docs_page.install(app, lambda: create_routes().routes)
    return tuple(app.routes)


@functools.cache
def route_table() -> tuple[RouteEntry, ...]:
    """Return the routes of :func:`_served_routes` with those below the prefixes of vendors."""
    vendors = (entry for vendor in VENDORS for entry in route_entries(vendor.router.routes, vendor.prefix))
    return (*vendors, *route_entries(_served_routes()))


def _include_vendors(app: FastAPI) -> None:
    for vendor in VENDORS:  # first, because each is skipped after a look at its prefix
        app.include_router(PrefixRouter(vendor.prefix, vendor.router), prefix=vendor.prefix, include_in_schema=False)


def _empty_app() -> FastAPI:
    return FastAPI(
        title="Sandlot",
        version=__version__,
        openapi_url=None,  # docs_page.py serves the document and its page: FastAPI's page loads scripts from a content network
        separate_input_output_schemas=False,
        redirect_slashes=False,  # DELETE with an empty name would be redirected to the list, and some clients take 307 for success
        generate_unique_id_function=operation_id,
        # Its logs would contain code and environments of requests.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
