"""The routes of SandboxAPI's API, below ``/sandboxapi``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.compat.sandboxapi import mcp, operations, translate
from sandlot.compat.sandboxapi.schemas import CodeBody, ExecuteBody, InstallBody, LanguagesAnswer, SessionBody, SessionsAnswer
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal, iter_body
from sandlot.web.models import json_response

router = APIRouter()


@router.post("/v1/execute")
async def execute(body: ExecuteBody, request: Request) -> Response:
    """Run a program once, and grade it where something is expected; it is killed when its client goes away."""
    return json_response(await cancel_on_disconnect(request, operations.run(get_node(request), get_principal(request), body)))


@router.get("/v1/languages")
async def languages() -> Response:
    """What code can be in."""
    return json_response(LanguagesAnswer(languages=[translate.language_answer(each) for each in translate.LANGUAGES]))


@router.post("/v1/sessions")
async def create_session(body: SessionBody, request: Request) -> Response:
    """Make a session. A client that goes away meanwhile leaves none behind."""
    return json_response(await cancel_on_disconnect(request, operations.create(get_node(request), get_principal(request), body)), 201)


@router.get("/v1/sessions")
async def list_sessions(request: Request) -> Response:
    """All sessions, oldest first."""
    return json_response(SessionsAnswer(sessions=await operations.listing(get_node(request), get_principal(request))))


@router.get("/v1/sessions/{session}")
async def get_session(session: str, request: Request) -> Response:
    """One session."""
    return json_response(translate.session(await operations.find(get_node(request), get_principal(request), session)))


@router.post("/v1/sessions/{session}/execute")
async def execute_in_session(session: str, body: CodeBody, request: Request) -> Response:
    """Run code in a session; it is interrupted when its client goes away."""
    return json_response(await cancel_on_disconnect(request, operations.execute(get_node(request), get_principal(request), session, body)))


@router.post("/v1/sessions/{session}/install")
@router.post("/v1/sessions/{session}/packages")
async def install(session: str, body: InstallBody, request: Request) -> Response:
    """Install packages in a session; it is ended when its client goes away."""
    return json_response(await cancel_on_disconnect(request, operations.install(get_node(request), get_principal(request), session, body)))


@router.delete("/v1/sessions/{session}")
@router.post("/v1/sessions/{session}/close")
async def close_session(session: str, request: Request) -> Response:
    """End a session, and all that is in it."""
    await operations.close(get_node(request), get_principal(request), session)
    return Response(status_code=204)


@router.post("/mcp")
async def model_context(request: Request) -> Response:
    """One message of a model's client, which is offered all of this as tools. What it runs is killed when it goes away."""
    content = b"".join([chunk async for chunk in iter_body(request)])
    told = await cancel_on_disconnect(
        request, mcp.answer(get_node(request), get_principal(request), content, request.headers.get(mcp.VERSION_HEADER))
    )
    return Response(told.body, told.status, media_type="application/json" if told.body else None)
