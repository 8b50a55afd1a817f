"""Routes of SandboxAPI, below ``/sandboxapi``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.routing import Route

from sandlot.compat.sandboxapi import operations, translate
from sandlot.compat.sandboxapi.schemas import (
    CreateSessionRequest,
    ExecuteRequest,
    InstallPackagesRequest,
    RunCodeRequest,
    SessionListResponse,
)
from sandlot.mcp.http import McpEndpoint
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import json_response

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/execute")
async def execute(body: ExecuteRequest, request: Request) -> Response:
    """Run a program once, and grade it if an output is expected. The program is killed if the client disconnects."""
    return json_response(await cancel_on_disconnect(request, operations.run_program(get_node(request), get_principal(request), body)))


@router.get("/v1/languages")
async def list_languages(request: Request) -> Response:
    """List the languages of programs and sessions."""
    return json_response(await operations.list_languages(get_node(request), get_principal(request)))


@router.post("/v1/sessions")
async def create_session(body: CreateSessionRequest, request: Request) -> Response:
    """Create a session. If the client disconnects before the response, the session is removed."""
    creating = operations.create_session(get_node(request), get_principal(request), body)
    return json_response(await cancel_on_disconnect(request, creating), 201)


@router.get("/v1/sessions")
async def list_sessions(request: Request) -> Response:
    """List all sessions, oldest first."""
    return json_response(SessionListResponse(sessions=await operations.list_sessions(get_node(request), get_principal(request))))


@router.get("/v1/sessions/{session}")
async def get_session(session: str, request: Request) -> Response:
    """Return a session."""
    return json_response(translate.session_response(await operations.find_session(get_node(request), get_principal(request), session)))


@router.post("/v1/sessions/{session}/execute")
async def run_code(session: str, body: RunCodeRequest, request: Request) -> Response:
    """Run code in a session. The code is interrupted if the client disconnects."""
    return json_response(await cancel_on_disconnect(request, operations.run_code(get_node(request), get_principal(request), session, body)))


@router.post("/v1/sessions/{session}/install")
@router.post("/v1/sessions/{session}/packages")
async def install_packages(session: str, body: InstallPackagesRequest, request: Request) -> Response:
    """Install packages in a session. The installation is killed if the client disconnects."""
    installing = operations.install_packages(get_node(request), get_principal(request), session, body)
    return json_response(await cancel_on_disconnect(request, installing))


@router.delete("/v1/sessions/{session}")
@router.post("/v1/sessions/{session}/close")
async def close_session(session: str, request: Request) -> Response:
    """Kill a session and delete its files."""
    await operations.close_session(get_node(request), get_principal(request), session)
    return Response(status_code=204)


router.routes.append(Route("/mcp", McpEndpoint("sandlot.compat.sandboxapi.mcp", has_sessions=False), methods=["POST"]))
