"""Objects of agents, sessions and events as the vendor's clients read them: a subset of Claude's managed agents. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sandlot.model.agents import AgentEventRecord, AgentRecord, AgentSessionRecord, SessionStatus

TOOL_USE: Final = "agent.tool_use"
Object = Mapping[str, Any]


def agent_object(record: AgentRecord) -> Object:
    """Return an agent."""
    config = record.config
    return {
        "type": "agent",
        "id": record.id,
        "version": record.version,
        "name": config.name,
        "description": config.description or None,
        "model": {"id": config.model, "name": config.model},
        "system": config.system or None,
        "tools": [dict(tool) for tool in config.tools],
        "mcp_servers": [],
        "skills": [],
        "metadata": dict(config.metadata),
        "created_at": record.created_at.isoformat(),
        "updated_at": record.updated_at.isoformat(),
        "archived_at": None if record.archived_at is None else record.archived_at.isoformat(),
    }


def session_object(record: AgentSessionRecord, template: str) -> Object:
    """Return a session.

    Args:
        record: The session.
        template: The vendor's name of the template.
    """
    config, usage = record.config, record.usage
    return {
        "type": "session",
        "id": record.id,
        "agent_id": record.agent,
        "agent": {
            "type": "agent",
            "id": record.agent,
            "version": record.agent_version,
            "name": config.name,
            "description": config.description or None,
            "model": {"id": config.model, "name": config.model},
            "system": config.system or None,
            "tools": [dict(tool) for tool in config.tools],
            "mcp_servers": [],
            "skills": [],
        },
        "environment_id": template,
        "environment": {"template_id": template, "timeout": record.environment.timeout_s},
        "sandbox_id": record.sandbox,
        "status": record.status,
        "title": record.title,
        "metadata": dict(record.metadata),
        "usage": None if not usage.model_requests else {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
        "resources": [],
        "outcome_evaluations": [],
        "stats": {},
        "vault_ids": [],
        "created_at": record.created_at.isoformat(),
        "updated_at": record.updated_at.isoformat(),
        "archived_at": record.updated_at.isoformat() if record.status is SessionStatus.TERMINATED else None,
    }


def event_object(record: AgentEventRecord) -> Object:
    """Return an event. The id of a call is that by which its result names the call."""
    data = dict(record.data)
    id_ = data.pop("tool_use_id") if record.type == TOOL_USE else record.id
    return {"type": record.type, "id": id_, "processed_at": record.at.isoformat(), **data}


def answer_object(session: AgentSessionRecord, events: Sequence[AgentEventRecord]) -> Object:
    """Return the response to a single message: the last text of the agent, with all events of the run."""
    messages = [each for each in events if each.type == "agent.message"]
    texts = [block["text"] for block in messages[-1].data["content"] if block["type"] == "text"] if messages else []
    return {
        "type": "message",
        "id": messages[-1].id if messages else session.id,
        "role": "assistant",
        "content": "\n".join(texts),
        "status": session.status,
        "stop_reason": session.stop_reason,
        "events": [event_object(each) for each in events],
    }
