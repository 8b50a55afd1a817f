"""Sessions of agents: schemas and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.agents.service.dependencies import get_agents
from sandlot.model.agents import AgentEventRecord, AgentSessionRecord, SessionEnvironment
from sandlot.model.network import NetworkMode
from sandlot.model.specs import MAX_TIMEOUT_S
from sandlot.server.v1.common import PROBLEM, Cursor, EventTable, LastEventId, Problem, documented_response, stream_start
from sandlot.web import pagination, streaming
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, json_response

DEFAULT_TEMPLATE = "code-interpreter"

EVENT_TYPES = {
    "user.message": "a message of the user",
    "user.interrupt": "the user interrupted the run",
    "session.status_running": "a run began",
    "agent.message": "text of the model",
    "agent.thinking": "the model thought; there is no content",
    "agent.tool_use": "the model called a tool: `tool_use_id`, `name`, `input`",
    "agent.tool_result": "result of a call: `tool_use_id`, `content` with texts and images, `is_error`",
    "session.error": "the run failed or reached a limit: `error` with `type` and `message`",
    "session.status_terminated": "the session was archived",
    "session.status_idle": "the run ended: `stop_reason` with the type `end_turn`, `budget_reached`, `retries_exhausted` or `refusal`",
}
"""Type of an event -> its meaning."""


class SessionEnvironmentRequest(RequestModel):
    """Sandbox that a session gets with its first call of a tool."""

    template: Text = Field(default=DEFAULT_TEMPLATE, description="Template of the sandbox.")
    timeout: float | None = Field(
        default=None, description=f"Seconds until the sandbox ends, counted from its last use, 1 to {MAX_TIMEOUT_S:.0f}. Default: 300."
    )
    network: NetworkMode | None = Field(default=None, description="Network mode of the sandbox. Default: that of new sandboxes.")


class CreateAgentSessionRequest(RequestModel):
    """Options of a new session."""

    agent: Text = Field(description="Id of the agent.", examples=["agent_x2m4c7qpl5tnbdwy"])
    environment: SessionEnvironmentRequest = Field(default_factory=SessionEnvironmentRequest, description="Sandbox of the session.")
    title: Text | None = Field(default=None, description="Title for people, at most 256 bytes.")
    metadata: Metadata = Field(default_factory=dict, description="Metadata of the user: at most 64 entries and 16 KiB.")


class UpdateAgentSessionRequest(RequestModel):
    """Changes of a session. Omitted fields do not change."""

    title: Text | None = Field(default=None, description="New title.")
    metadata: Metadata | None = Field(default=None, description="New metadata.")


class SendMessageRequest(RequestModel):
    """A message of the user."""

    content: Text = Field(description="Text of 1 to 262,144 bytes.", examples=["How many rows does /workspace/sales.csv have?"])


class AgentUsageResponse(ResponseModel):
    """Use of the model and of tools by all runs of a session."""

    model_requests: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float = Field(description="Price of the tokens in US dollars; 0 for a model whose price is not configured.")


class SessionEnvironmentResponse(ResponseModel):
    """Sandbox that the session gets."""

    template: str
    timeout: float | None
    network: str | None


class AgentSessionResponse(ResponseModel):
    """A session: a conversation with an agent."""

    id: str = Field(examples=["sess_x2m4c7qpl5tnbdwy"])
    owner: str = Field(description="Id of the key that owns the session, or `local`.")
    agent: str = Field(description="Id of the agent.")
    agent_version: int = Field(description="Version of the agent's configuration that the session uses.")
    environment: SessionEnvironmentResponse
    title: str | None
    metadata: dict[str, str]
    status: str = Field(description="`idle`, `running`, or `terminated` for an archived session.")
    stop_reason: str | None = Field(description="Reason of the end of the last run; null before the first run has ended.")
    sandbox: str | None = Field(description="Id of the last sandbox of the session; null before the first call of a tool.")
    usage: AgentUsageResponse
    last_event: int = Field(description="Sequence number of the last event; 0 before the first event.")
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, record: AgentSessionRecord) -> AgentSessionResponse:
        """Return the response for a session."""
        usage, environment = record.usage, record.environment
        return cls(
            id=record.id,
            owner=record.owner,
            agent=record.agent,
            agent_version=record.agent_version,
            environment=SessionEnvironmentResponse(template=environment.template, timeout=environment.timeout_s, network=environment.network),
            title=record.title,
            metadata=dict(record.metadata),
            status=record.status,
            stop_reason=record.stop_reason,
            sandbox=record.sandbox,
            usage=AgentUsageResponse(
                model_requests=usage.model_requests,
                tool_calls=usage.tool_calls,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cost_usd=usage.cost_usd,
            ),
            last_event=record.last_sequence,
            created_at=record.created_at,
            updated_at=record.updated_at,
        )


class AgentSessionsResponse(ResponseModel):
    """A page of sessions."""

    sessions: list[AgentSessionResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class AgentSessionsQuery(QueryModel):
    """Page of a list of sessions."""

    agent: Text | None = Field(default=None, description="Only sessions of this agent, by its id.")
    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=50, ge=1, le=1000, description="Maximum number of sessions of the page.")


class AgentEventResponse(ResponseModel):
    """An event of a session."""

    sequence: int = Field(description="Number of the event in its session, from 1 without gaps.")
    id: str = Field(examples=["sevt_x2m4c7qpl5tnbdwy"])
    type: str = Field(description="; ".join(f"`{name}`: {meaning}" for name, meaning in EVENT_TYPES.items()))
    at: datetime
    data: dict[str, Any] = Field(description="Fields of the type.")

    @classmethod
    def of(cls, record: AgentEventRecord) -> AgentEventResponse:
        """Return the response for an event."""
        return cls(sequence=record.sequence, id=record.id, type=record.type, at=record.at, data=dict(record.data))


class AgentEventsResponse(ResponseModel):
    """A page of events, oldest first."""

    events: list[AgentEventResponse]
    more: bool = Field(description="True if later events exist; pass the last `sequence` as `after`.")


class AgentEventsQuery(QueryModel):
    """Events to list or to follow."""

    after: int = Field(default=0, ge=0, lt=2**31, description="Only events with a larger sequence number.")
    limit: int = Field(default=100, ge=1, le=1000, description="Maximum number of events of a list.")


class InterruptAgentResponse(ResponseModel):
    """Result of an interrupt."""

    running: bool = Field(description="True if a run was interrupted. It has ended.")


AGENT_EVENTS: EventTable = {**dict.fromkeys(EVENT_TYPES, AgentEventResponse), "failure": Problem}

router = APIRouter(prefix="/v1/agent-sessions", tags=["agent_sessions"], route_class=JsonRoute)


@router.post("", status_code=201, responses=documented_response(AgentSessionResponse, "The new session.", 201))
async def create(body: CreateAgentSessionRequest, request: Request) -> Response:
    """Create a session with the current configuration of an agent. Its sandbox is created with the first call of a tool."""
    environment = SessionEnvironment(body.environment.template, body.environment.timeout, body.environment.network)
    created = await get_agents(request).create_session(get_principal(request), body.agent, environment, title=body.title, metadata=body.metadata)
    return json_response(AgentSessionResponse.of(created), 201)


@router.get("", responses=documented_response(AgentSessionsResponse, "A page of sessions, newest first."))
async def list_sessions(query: Annotated[AgentSessionsQuery, Query()], request: Request) -> Response:
    """List sessions of the caller, newest first; operators get those of all keys."""
    page = await get_node(request).agents.list_sessions(
        get_principal(request), agent=query.agent, before=pagination.decode_cursor(query.cursor), limit=query.limit
    )
    return json_response(
        AgentSessionsResponse(sessions=[AgentSessionResponse.of(record) for record in page.items], next_cursor=pagination.next_cursor(page))
    )


@router.get("/{session}", responses=documented_response(AgentSessionResponse, "The session."))
async def get(session: str, request: Request) -> Response:
    """Get a session."""
    return json_response(AgentSessionResponse.of(await get_node(request).agents.get_session(get_principal(request), session)))


@router.patch("/{session}", responses=documented_response(AgentSessionResponse, "The changed session."))
async def update(session: str, body: UpdateAgentSessionRequest, request: Request) -> Response:
    """Update the title and the metadata of a session."""
    changed = await get_node(request).agents.update_session(get_principal(request), session, title=body.title, metadata=body.metadata)
    return json_response(AgentSessionResponse.of(changed))


@router.post("/{session}/archive", responses=documented_response(AgentSessionResponse, "The archived session."))
async def archive(session: str, request: Request) -> Response:
    """Archive a session. An active run and the sandbox of the session are ended; its events and files stay. It takes no more messages."""
    return json_response(AgentSessionResponse.of(await get_agents(request).archive_session(get_principal(request), session)))


@router.delete("/{session}", status_code=204, responses=PROBLEM)
async def delete(session: str, request: Request) -> Response:
    """Delete a session with its events and files. An active run and the sandbox of the session are ended."""
    await get_agents(request).delete_session(get_principal(request), session)
    return Response(status_code=204)


@router.post("/{session}/messages", status_code=202, responses=documented_response(AgentSessionResponse, "The session, which runs now.", 202))
async def send_message(session: str, body: SendMessageRequest, request: Request) -> Response:
    """Send a message to the agent. The run continues if the client disconnects; its events are those of `GET …/events`."""
    begun = await get_agents(request).send(get_principal(request), session, body.content)
    return json_response(AgentSessionResponse.of(begun), 202)


@router.post("/{session}/interrupt", responses=documented_response(InterruptAgentResponse, "Result of the interrupt."))
async def interrupt(session: str, request: Request) -> Response:
    """Interrupt the run of a session. The program of an open call is ended."""
    return json_response(InterruptAgentResponse(running=await get_agents(request).interrupt(get_principal(request), session)))


@router.get(
    "/{session}/events",
    responses=documented_response(
        AgentEventsResponse, "A page of events, or stored and new events with `Accept: text/event-stream`.", events=AGENT_EVENTS
    ),
)
async def list_events(
    session: str,
    query: Annotated[AgentEventsQuery, Query()],
    request: Request,
    last_event_id: LastEventId = None,
) -> Response:
    """List or follow the events of a session. A stream begins after `after` and ends when the session is deleted."""
    principal, agents = get_principal(request), get_node(request).agents
    if streaming.accepts_events(request):
        stream = await agents.follow_events(principal, session, after=stream_start(query.after, last_event_id, max_digits=9))
        return streaming.event_response(request, _feed(stream), stream.aclose)
    page = await agents.events(principal, session, after=query.after, limit=query.limit)
    return json_response(AgentEventsResponse(events=[AgentEventResponse.of(record) for record in page.items], more=page.more))


async def _feed(records: AsyncIterator[AgentEventRecord]) -> AsyncIterator[streaming.StreamEvent]:
    async for record in records:
        yield streaming.StreamEvent(record.type, AgentEventResponse.of(record).model_dump(mode="json"), record.sequence)
