"""Agents: schemas and routes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.agents.service.dependencies import get_agents
from sandlot.model.agents import AgentChange, AgentConfig, AgentRecord
from sandlot.server.v1.common import PROBLEM, Cursor, documented_response
from sandlot.web import pagination
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import Metadata, QueryModel, RequestModel, ResponseModel, Text, json_response

_TOOLS = (
    'Tools of the agent: `[{"type": "mcp", "server": "code-exec"}]` for those of a sandbox (run code and commands, install packages, read and write '
    "files), and those of MCP servers that the operator has configured, by their names. Empty for none."
)


class CreateAgentRequest(RequestModel):
    """Configuration of a new agent."""

    name: Text = Field(description="Name for people, 1 to 256 bytes.", examples=["Data analyst"])
    model: Text = Field(description="Name of a model that the operator has configured.", examples=["claude-sonnet-4"])
    system: Text = Field(default="", description="System prompt of at most 256 KiB.")
    tools: list[dict[str, Any]] = Field(default_factory=list, description=_TOOLS)
    description: Text = Field(default="", description="Description for people, at most 4 KiB.")
    metadata: Metadata = Field(default_factory=dict, description="Metadata of the user: at most 64 entries and 16 KiB.")

    def config(self) -> AgentConfig:
        """Return the parameters of the operation."""
        return AgentConfig(self.name, self.model, self.system, tuple(self.tools), self.description, self.metadata)


class UpdateAgentRequest(RequestModel):
    """Changes of an agent. Omitted fields do not change. Existing sessions keep the configuration with which they were created."""

    version: int | None = Field(
        default=None, ge=1, description="Version that the caller has read. For an agent with another version, the update is a 409."
    )
    name: Text | None = Field(default=None, description="New name.")
    model: Text | None = Field(default=None, description="New model.")
    system: Text | None = Field(default=None, description="New system prompt.")
    tools: list[dict[str, Any]] | None = Field(default=None, description=_TOOLS)
    description: Text | None = Field(default=None, description="New description.")
    metadata: Metadata | None = Field(default=None, description="New metadata.")

    def change(self) -> AgentChange:
        """Return the parameters of the operation."""
        tools = None if self.tools is None else tuple(self.tools)
        return AgentChange(self.name, self.model, self.system, tools, self.description, self.metadata)


class AgentResponse(ResponseModel):
    """An agent."""

    id: str = Field(examples=["agent_x2m4c7qpl5tnbdwy"])
    owner: str = Field(description="Id of the key that owns the agent, or `local`.")
    version: int = Field(description="Number of the configuration; each update adds 1.")
    name: str
    model: str
    system: str
    tools: list[dict[str, Any]]
    description: str
    metadata: dict[str, str]
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None = Field(description="Time since which the agent gets no new sessions; null if it is not archived.")

    @classmethod
    def of(cls, record: AgentRecord) -> AgentResponse:
        """Return the response for an agent."""
        config = record.config
        return cls(
            id=record.id,
            owner=record.owner,
            version=record.version,
            name=config.name,
            model=config.model,
            system=config.system,
            tools=[dict(tool) for tool in config.tools],
            description=config.description,
            metadata=dict(config.metadata),
            created_at=record.created_at,
            updated_at=record.updated_at,
            archived_at=record.archived_at,
        )


class AgentsResponse(ResponseModel):
    """A page of agents."""

    agents: list[AgentResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last page.")


class AgentsQuery(QueryModel):
    """Page of a list of agents."""

    archived: bool = Field(default=False, description="Include archived agents.")
    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page.")
    limit: int = Field(default=50, ge=1, le=1000, description="Maximum number of agents of the page.")


router = APIRouter(prefix="/v1/agents", tags=["agents"], route_class=JsonRoute)


@router.post("", status_code=201, responses=documented_response(AgentResponse, "The new agent.", 201))
async def create(body: CreateAgentRequest, request: Request) -> Response:
    """Create an agent. Without configured models, the response is a 400 `model_not_configured`."""
    return json_response(AgentResponse.of(await get_agents(request).create(get_principal(request), body.config())), 201)


@router.get("", responses=documented_response(AgentsResponse, "A page of agents, newest first."))
async def list_agents(query: Annotated[AgentsQuery, Query()], request: Request) -> Response:
    """List agents of the caller, newest first; operators get those of all keys."""
    page = await get_node(request).agents.list(
        get_principal(request), archived=query.archived, before=pagination.decode_cursor(query.cursor), limit=query.limit
    )
    return json_response(AgentsResponse(agents=[AgentResponse.of(record) for record in page.items], next_cursor=pagination.next_cursor(page)))


@router.get("/{agent}", responses=documented_response(AgentResponse, "The agent."))
async def get(agent: str, request: Request) -> Response:
    """Get an agent."""
    return json_response(AgentResponse.of(await get_node(request).agents.get(get_principal(request), agent)))


@router.patch("/{agent}", responses=documented_response(AgentResponse, "The changed agent."))
async def update(agent: str, body: UpdateAgentRequest, request: Request) -> Response:
    """Update the configuration of an agent, which makes a new version."""
    changed = await get_agents(request).update(get_principal(request), agent, body.change(), version=body.version)
    return json_response(AgentResponse.of(changed))


@router.post("/{agent}/archive", responses=documented_response(AgentResponse, "The archived agent."))
async def archive(agent: str, request: Request) -> Response:
    """Archive an agent: it gets no new sessions and cannot be changed. Its sessions continue."""
    return json_response(AgentResponse.of(await get_node(request).agents.archive(get_principal(request), agent)))


@router.delete("/{agent}", status_code=204, responses=PROBLEM)
async def delete(agent: str, request: Request) -> Response:
    """Delete an agent. Its sessions are archived, which ends their runs and sandboxes; they stay readable."""
    await get_agents(request).delete(get_principal(request), agent)
    return Response(status_code=204)
