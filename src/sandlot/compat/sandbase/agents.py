"""Routes of agents and their sessions, below ``/default/v1`` and ``/v1``.

The vendor's pages show a single message as an event; its later pages have lists of events, with the paths and names of Claude's managed agents. Both
work, so that the package ``anthropic`` can be used as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field

from sandlot.agents.service.dependencies import get_agents
from sandlot.agents.service.runtime import TOOLSET_TYPE
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.compat.sandbase import agent_objects, operations, translate
from sandlot.compat.vendor import not_supported
from sandlot.model.agents import MOST_OPEN_NETWORK, AgentChange, AgentConfig, AgentEventRecord, AgentSessionRecord, SessionEnvironment
from sandlot.model.errors import InvalidRequestError, NotFoundError
from sandlot.web import pagination, streaming
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import Metadata, QueryModel, RequestModel, Text

DEFAULT_TEMPLATE = "code_interpreter"
ANSWER_TIMEOUT_S = 600.0
"""Seconds for which the request of a single message waits for the agent. Later, the response is a 202."""
EVENTS_PAGE = 1000


class ModelName(RequestModel):
    """Model of an agent."""

    name: Text | None = None
    id: Text | None = None


class CreateAgentRequest(RequestModel):
    """An agent to create."""

    name: Text
    model: Text | ModelName
    system: Text | None = None
    description: Text | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    metadata: Metadata | None = None


class UpdateAgentRequest(RequestModel):
    """Changes of an agent."""

    version: int | None = None
    name: Text | None = None
    model: Text | ModelName | None = None
    system: Text | None = None
    description: Text | None = None
    tools: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None


class AgentReference(RequestModel):
    """Agent of a session."""

    id: Text
    type: Literal["agent"] = "agent"


class Environment(RequestModel):
    """Sandbox of a session."""

    template_id: Text = DEFAULT_TEMPLATE
    timeout: float | None = None


class CreateSessionRequest(RequestModel):
    """A session to create. ``environment_id`` is the name of a template, for clients that have no ``environment``."""

    agent_id: Text | None = None
    agent: Text | AgentReference | None = None
    environment: Environment | None = None
    environment_id: Text | None = None
    title: Text | None = None
    metadata: Metadata | None = None


class UpdateSessionRequest(RequestModel):
    """Changes of a session."""

    title: Text | None = None
    metadata: Metadata | None = None


class TextBlock(RequestModel):
    """A text of a message."""

    type: Literal["text"]
    text: Text


class NewEvent(RequestModel):
    """An event of the user."""

    type: Literal["user.message", "user.interrupt"]
    content: list[TextBlock] | Text | None = None


class SendEventsRequest(RequestModel):
    """Events, or a single message."""

    events: list[NewEvent] | None = None
    type: Literal["message"] | None = None
    role: Literal["user"] | None = None
    content: list[TextBlock] | Text | None = None


class AgentPageQuery(QueryModel):
    """Page of a list. Other options of the client have no effect."""

    limit: int = Field(default=20, ge=1, le=1000)
    page: Text | None = None
    include_archived: bool = False
    agent_id: Text | None = None
    beta: bool | None = None


class AgentEventsQuery(QueryModel):
    """Page of events."""

    limit: int = Field(default=100, ge=1, le=1000)
    page: Text | None = None
    beta: bool | None = None


routes = APIRouter(route_class=JsonRoute)
"""Routes without their prefix."""


@routes.post("/agents")
async def create_agent(body: CreateAgentRequest, request: Request) -> Response:
    """Create an agent."""
    config = AgentConfig(body.name, _model(body.model), body.system or "", tuple(map(_tool, body.tools)), body.description or "", body.metadata or {})
    return e2b_json_response(agent_objects.agent_object(await get_agents(request).create(get_principal(request), config)), 201)


@routes.get("/agents")
async def list_agents(query: Annotated[AgentPageQuery, Query()], request: Request) -> Response:
    """List the agents, newest first."""
    page = await get_node(request).agents.list(
        get_principal(request), archived=query.include_archived, before=pagination.decode_cursor(query.page), limit=query.limit
    )
    return e2b_json_response({"data": [agent_objects.agent_object(each) for each in page.items], "next_page": pagination.next_cursor(page)})


@routes.get("/agents/{agent}")
async def get_agent(agent: str, request: Request) -> Response:
    """Return an agent."""
    return e2b_json_response(agent_objects.agent_object(await get_node(request).agents.get(get_principal(request), agent)))


@routes.post("/agents/{agent}")
@routes.patch("/agents/{agent}")
async def update_agent(agent: str, body: UpdateAgentRequest, request: Request) -> Response:
    """Change an agent."""
    tools = None if body.tools is None else tuple(map(_tool, body.tools))
    model = None if body.model is None else _model(body.model)
    change = AgentChange(body.name, model, body.system, tools, body.description, body.metadata)
    return e2b_json_response(
        agent_objects.agent_object(await get_agents(request).update(get_principal(request), agent, change, version=body.version))
    )


@routes.post("/agents/{agent}/archive")
async def archive_agent(agent: str, request: Request) -> Response:
    """Archive an agent."""
    return e2b_json_response(agent_objects.agent_object(await get_node(request).agents.archive(get_principal(request), agent)))


@routes.delete("/agents/{agent}")
async def delete_agent(agent: str, request: Request) -> Response:
    """Delete an agent, and archive its sessions."""
    await get_agents(request).delete(get_principal(request), agent)
    return e2b_json_response({"id": agent, "type": "agent_deleted"})


@routes.post("/sessions")
async def create_session(body: CreateSessionRequest, request: Request) -> Response:
    """Create a session."""
    reference = body.agent.id if isinstance(body.agent, AgentReference) else body.agent
    agent = body.agent_id or reference
    if agent is None:
        raise InvalidRequestError("`agent_id` is missing.", hint="Pass the id of an agent.", fields={"field": "agent_id"})
    environment = body.environment or Environment(template_id=body.environment_id or DEFAULT_TEMPLATE)
    _, template = await operations.find_template(get_node(request), get_principal(request), environment.template_id)
    timeout_s = None if environment.timeout is None else translate.timeout_s(environment.timeout)
    created = await get_agents(request).create_session(
        get_principal(request),
        agent,
        SessionEnvironment(template.name, timeout_s, MOST_OPEN_NETWORK),
        title=body.title,
        metadata=body.metadata,
    )
    return e2b_json_response(await _session(request, created), 201)


@routes.get("/sessions")
async def list_sessions(query: Annotated[AgentPageQuery, Query()], request: Request) -> Response:
    """List the sessions, newest first."""
    page = await get_node(request).agents.list_sessions(
        get_principal(request), agent=query.agent_id, archived=query.include_archived, before=pagination.decode_cursor(query.page), limit=query.limit
    )
    return e2b_json_response({"data": [await _session(request, each) for each in page.items], "next_page": pagination.next_cursor(page)})


@routes.get("/sessions/{session}")
async def get_session(session: str, request: Request) -> Response:
    """Return a session."""
    return e2b_json_response(await _session(request, await get_node(request).agents.get_session(get_principal(request), session)))


@routes.post("/sessions/{session}")
@routes.patch("/sessions/{session}")
async def update_session(session: str, body: UpdateSessionRequest, request: Request) -> Response:
    """Change the title or the metadata of a session."""
    changed = await get_node(request).agents.update_session(get_principal(request), session, title=body.title, metadata=body.metadata)
    return e2b_json_response(await _session(request, changed))


@routes.post("/sessions/{session}/archive")
async def archive_session(session: str, request: Request) -> Response:
    """Archive a session: its run and its sandbox end, its events and files stay."""
    return e2b_json_response(await _session(request, await get_agents(request).archive_session(get_principal(request), session)))


@routes.delete("/sessions/{session}")
async def delete_session(session: str, request: Request) -> Response:
    """Delete a session with its events, files and sandbox."""
    await get_agents(request).delete_session(get_principal(request), session)
    return e2b_json_response({"id": session, "type": "session_deleted"})


@routes.post("/sessions/{session}/cancel")
async def cancel_session(session: str, request: Request) -> Response:
    """Interrupt the run of a session."""
    await get_agents(request).interrupt(get_principal(request), session)
    return await get_session(session, request)


@routes.post("/sessions/{session}/events")
async def send_events(session: str, body: SendEventsRequest, request: Request) -> Response:
    """Send events. A single message waits for the answer of the agent; lists of events are accepted at once."""
    if body.events is None:
        return await _send_message(request, session, body)
    principal, agents = get_principal(request), get_agents(request)
    before = (await get_node(request).agents.get_session(principal, session)).last_sequence
    for event in body.events:
        if event.type == "user.interrupt":
            await agents.interrupt(principal, session)
        else:
            await agents.send(principal, session, _text(event.content))
    page = await get_node(request).agents.events(principal, session, after=before, limit=EVENTS_PAGE)
    return e2b_json_response({"data": [agent_objects.event_object(each) for each in page.items if each.type.startswith("user.")]})


@routes.get("/sessions/{session}/events")
async def list_events(session: str, query: Annotated[AgentEventsQuery, Query()], request: Request) -> Response:
    """List the events of a session, oldest first."""
    after = _sequence(query.page)
    page = await get_node(request).agents.events(get_principal(request), session, after=after, limit=query.limit)
    following = str(page.items[-1].sequence) if page.more else None
    return e2b_json_response({"data": [agent_objects.event_object(each) for each in page.items], "next_page": following})


@routes.get("/sessions/{session}/events/stream")
async def stream_events(session: str, request: Request) -> Response:
    """Stream the stored events of a session, and then new ones. The service does not end the stream."""
    stream = await get_node(request).agents.follow_events(get_principal(request), session)
    return streaming.KeepAliveStreamResponse(
        _sse(stream), stream.aclose, media_type=streaming.SSE_MEDIA_TYPE, headers={"X-Accel-Buffering": "no"}, keep_alive=b": heartbeat\n\n"
    )


@routes.get("/sessions/{session}/files/{file}")
async def get_file(session: str, file: str, request: Request) -> Response:
    """Return the content of an image that an event of a session names."""
    node, principal = get_node(request), get_principal(request)
    if file not in {each["source"]["file_id"] for each in await _images(request, session)}:
        raise NotFoundError(f"The session has no file {file[:64]!r}.", hint="Use the `file_id` of an image of an event.")
    record = await node.file_store.get(principal, file)
    content = await node.file_store.read(principal, file)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment", "Content-Length": str(record.size_bytes)}
    response = streaming.KeepAliveStreamResponse(content, content.aclose, media_type=record.media_type, headers=headers)
    response.headers["Content-Length"] = str(record.size_bytes)
    return response


@routes.get("/sessions/{session}/files")
async def list_files(session: str, request: Request) -> Response:
    """List the images that the events of a session name."""
    images = [{"id": each["source"]["file_id"], "media_type": each["source"]["media_type"]} for each in await _images(request, session)]
    return e2b_json_response({"data": images})


async def _send_message(request: Request, session: str, body: SendEventsRequest) -> Response:
    if body.type != "message":
        raise InvalidRequestError(
            "`type` is missing.", hint='Pass {"type": "message", "role": "user", "content": …}, or `events`.', fields={"field": "type"}
        )
    node, principal, agents = get_node(request), get_principal(request), get_agents(request)
    begun = await agents.send(principal, session, _text(body.content))
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await cancel_on_disconnect(request, agents.wait(begun.id))
    except TimeoutError:
        return e2b_json_response(await _session(request, await node.agents.get_session(principal, session)), HTTPStatus.ACCEPTED)
    done = await node.agents.get_session(principal, session)
    events = await node.agents.events(principal, session, after=begun.last_sequence, limit=EVENTS_PAGE)
    return e2b_json_response(agent_objects.answer_object(done, events.items))


async def _session(request: Request, record: AgentSessionRecord) -> agent_objects.Object:
    templates = await get_node(request).templates.list(get_principal(request))
    names = {template.name: name for name, template in translate.vendor_names(templates)}
    return agent_objects.session_object(record, names.get(record.environment.template, record.environment.template))


async def _images(request: Request, session: str) -> list[Any]:
    node, principal = get_node(request), get_principal(request)
    images: list[Any] = []
    after, more = 0, True
    while more:
        page = await node.agents.events(principal, session, after=after, limit=EVENTS_PAGE)
        images += [block for event in page.items for block in event.data.get("content", ()) if block["type"] == "image"]
        after, more = page.items[-1].sequence if page.items else after, page.more
    return images


async def _sse(records: AsyncIterator[AgentEventRecord]) -> AsyncIterator[bytes]:
    # The package `anthropic` ignores events without the line `event:`, which the vendor's pages do not show.
    async for record in records:
        yield streaming.StreamEvent(record.type, agent_objects.event_object(record)).as_sse()


def _model(model: str | ModelName) -> str:
    name = model if isinstance(model, str) else model.name or model.id
    if not name:
        raise InvalidRequestError("`model` has no name.", hint='Pass {"name": …}.', fields={"field": "model"})
    return name


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool without the options of Claude's managed agents, which have no effect here."""
    return {"type": TOOLSET_TYPE} if tool.get("type") == TOOLSET_TYPE else tool


def _text(content: list[TextBlock] | str | None) -> str:
    if content is None:
        raise InvalidRequestError("`content` is missing.", hint="Pass the text of the message.", fields={"field": "content"})
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _sequence(page: str | None) -> int:
    if page is None:
        return 0
    if not (page.isascii() and page.isdecimal() and len(page) <= 9):  # noqa: PLR2004 - digits of a sequence number
        raise InvalidRequestError("`page` is no cursor of this list.", hint="Pass `next_page` of the previous page.", fields={"field": "page"})
    return int(page)


not_supported(routes, "POST", "/environments", "Pass the name of a template as `environment_id`; GET /templates lists the templates.")

router = APIRouter(route_class=JsonRoute)
for _prefix in ("/default/v1", "/v1"):
    for _each in routes.routes:
        assert isinstance(_each, APIRoute)  # noqa: S101 - there are no others
        router.add_api_route(_prefix + _each.path, _each.endpoint, methods=sorted(_each.methods or ()))
