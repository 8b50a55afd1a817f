"""Agents, their sessions, and the events of sessions.

Invariants:
- A session keeps the configuration that its agent had when the session was created.
- The events of a session are numbered from 1 without gaps, in the order in which they were stored. A stored event never changes.
- At most one run of a session is active at a time: it begins with the change of the status from ``idle`` to ``running``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sandlot.model.access import OwnerId
from sandlot.model.ids import AgentEventId, AgentId, AgentSessionId, NodeId, SandboxId

MOST_OPEN_NETWORK: Final = "most_open"
"""In place of a network mode: the most open mode that the operator and the quota of the owner allow."""


class SessionStatus(StrEnum):
    """Status of a session."""

    IDLE = "idle"
    """Waits for a message."""
    RUNNING = "running"
    """A run is active."""
    TERMINATED = "terminated"
    """Is archived: takes no more messages, and has no sandbox."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Configuration of an agent.

    Args:
        name: Name for people.
        model: Name of a model, as the operator has configured it.
        system: System prompt; empty for none.
        tools: Tools, as in the request that set them.
        description: Description for people.
        metadata: Metadata of the user.
    """

    name: str
    model: str
    system: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentRecord:
    """An agent.

    Args:
        id: Id of the agent.
        owner: Owner of the agent.
        version: Number of the configuration, 1 at first; each update adds 1.
        config: Current configuration.
        created_at: Time of the creation.
        updated_at: Time of the last update.
        archived_at: Time of the archival, after which the agent gets no new sessions and no changes; None: the agent is not archived.
    """

    id: AgentId
    owner: OwnerId
    version: int
    config: AgentConfig
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SessionEnvironment:
    """Sandbox that a session gets with its first call of a tool.

    Args:
        template: Name of the template.
        timeout_s: Seconds until the sandbox ends, counted from its last use by the session; None: the default.
        network: Network mode, or ``MOST_OPEN_NETWORK``. None: the default of new sandboxes.
    """

    template: str
    timeout_s: float | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """Use of the model and of tools by all runs of a session.

    Args:
        model_requests: Requests to the model.
        tool_calls: Calls of tools.
        input_tokens: Tokens that the model read.
        output_tokens: Tokens that the model wrote.
        cost_usd: Price of the tokens in US dollars, as far as the price of the model is configured.
    """

    model_requests: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class AgentSessionRecord:
    """A session: a conversation with an agent.

    Args:
        id: Id of the session.
        owner: Owner of the session.
        agent: Id of the agent.
        agent_version: Version of the agent's configuration that the session uses.
        config: This configuration.
        environment: Sandbox that the session gets.
        title: Title for people; None: no title.
        metadata: Metadata of the user.
        status: Status of the session.
        node: Node that runs the session; None while no run is active.
        sandbox: Last sandbox of the session; None before the first call of a tool.
        stop_reason: Reason of the end of the last run; None before the first run has ended.
        usage: Use by all runs.
        last_sequence: Number of stored events.
        created_at: Time of the creation.
        updated_at: Time of the last change.
    """

    id: AgentSessionId
    owner: OwnerId
    agent: AgentId
    agent_version: int
    config: AgentConfig
    environment: SessionEnvironment
    title: str | None
    metadata: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    status: SessionStatus = SessionStatus.IDLE
    node: NodeId | None = None
    sandbox: SandboxId | None = None
    stop_reason: str | None = None
    usage: SessionUsage = field(default_factory=SessionUsage)
    last_sequence: int = 0


@dataclass(frozen=True, slots=True)
class NewAgentEvent:
    """An event that is not stored yet.

    Args:
        id: Id of the event.
        type: Type, such as ``agent.message``.
        at: Time of the event.
        data: Fields of the type, representable as JSON.
    """

    id: AgentEventId
    type: str
    at: datetime
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AgentEventRecord:
    """A stored event of a session.

    Args:
        session: Session of the event.
        sequence: Number of the event in its session, from 1.
        id: Id of the event.
        type: Type of the event.
        at: Time of the event.
        data: Fields of the type.
    """

    session: AgentSessionId
    sequence: int
    id: AgentEventId
    type: str
    at: datetime
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A change of a session. A field that is None keeps its value.

    Args:
        status: New status. Any other status than ``running`` ends the active run.
        sandbox: New sandbox.
        stop_reason: Reason of the end of the run.
        usage: New usage of all runs together.
        title: New title.
        metadata: New metadata.
    """

    status: SessionStatus | None = None
    sandbox: SandboxId | None = None
    stop_reason: str | None = None
    usage: SessionUsage | None = None
    title: str | None = None
    metadata: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AgentChange:
    """A change of an agent's configuration. A field that is None keeps its value.

    Args:
        name: New name.
        model: New model.
        system: New system prompt.
        tools: New tools.
        description: New description.
        metadata: New metadata.
    """

    name: str | None = None
    model: str | None = None
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None
    description: str | None = None
    metadata: Mapping[str, str] | None = None
