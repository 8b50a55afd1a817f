"""Agents that the service runs, their sessions and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sandlot.sdk.models.values import short_repr

SANDBOX_TOOLS: Sequence[Mapping[str, Any]] = ({"type": "mcp", "server": "code-exec"},)
"""Tools of a sandbox: run code and commands, install packages, read and write files."""


@dataclass(frozen=True, slots=True, repr=False)
class AgentInfo:
    """An agent.

    Args:
        id: Id of the agent.
        name: Name for people.
        model: Model of the operator.
        version: Number of the configuration; each update adds 1.
        system: System prompt.
        tools: Tools of the agent; empty for none.
        description: Description for people.
        metadata: Metadata of the user.
        created_at: Time of the creation.
        updated_at: Time of the last update.
        archived_at: Time since which the agent gets no new sessions; None if it is not archived.
    """

    id: str
    name: str
    model: str
    version: int = 1
    system: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    archived_at: datetime | None = None

    __repr__ = short_repr("id", "name", "model", "version")


@dataclass(frozen=True, slots=True)
class AgentUsage:
    """Use of the model and of tools by all runs of a session.

    Args:
        model_requests: Requests to the model.
        tool_calls: Calls of tools.
        input_tokens: Tokens that the model read.
        output_tokens: Tokens that the model wrote.
        cost_usd: Price of the tokens in US dollars; 0 for a model whose price is not configured.
    """

    model_requests: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class AgentSessionInfo:
    """A session: a conversation with an agent.

    Args:
        id: Id of the session.
        agent: Id of the agent.
        status: ``idle``, ``running``, or ``terminated`` for an archived session.
        stop_reason: Reason of the end of the last run: ``end_turn``, ``budget_reached``, ``retries_exhausted`` or ``refusal``; None before its end.
        agent_version: Version of the agent's configuration that the session uses.
        sandbox: Id of the last sandbox; None before the first call of a tool.
        title: Title for people.
        metadata: Metadata of the user.
        usage: Use by all runs.
        last_event: Sequence number of the last event; 0 before the first event.
        created_at: Time of the creation.
        updated_at: Time of the last change.
    """

    id: str
    agent: str
    status: str
    stop_reason: str | None = None
    agent_version: int = 1
    sandbox: str | None = None
    title: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    usage: AgentUsage = field(default_factory=AgentUsage)
    last_event: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None

    __repr__ = short_repr("id", "agent", "status", "stop_reason")


@dataclass(frozen=True, slots=True)
class AgentEventInfo:
    """An event of a session.

    Args:
        sequence: Number of the event in its session, from 1 without gaps.
        type: Type such as ``agent.message``. A newer service may have other types.
        id: Id of the event.
        at: Time of the event.
        data: Fields of the type.
    """

    sequence: int
    type: str
    id: str = ""
    at: datetime | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All text of the event; empty if it has none."""
        content = self.data.get("content")
        blocks = content if isinstance(content, list) else []
        return "\n".join(str(each.get("text", "")) for each in blocks if isinstance(each, Mapping) and each.get("type") == "text")
