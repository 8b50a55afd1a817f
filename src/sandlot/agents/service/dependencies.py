"""Parts of routes that serve agents."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from sandlot.agents.service.runtime import AgentRuntime


def get_agents(request: HTTPConnection) -> AgentRuntime:
    """Return the runtime of agents of the app."""
    runtime: AgentRuntime = request.app.state.agents
    return runtime
