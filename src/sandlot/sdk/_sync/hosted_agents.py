# Generated from src/sandlot/sdk/_async/hosted_agents.py by scripts/unasync.py; change that file.
"""Agents that the service runs, as ``client.agents``, and their sessions, as ``client.agent_sessions``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.agents import SANDBOX_TOOLS, AgentEventInfo, AgentInfo, AgentSessionInfo

EVENTS_PAGE = 1000


class Agents:
    """The caller's agents, whose models the operator of the service has configured; with an operator's key, everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        name: str,
        model: str,
        *,
        system: str = "",
        tools: Sequence[Mapping[str, Any]] = SANDBOX_TOOLS,
        description: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> AgentInfo:
        """Create an agent.

        Args:
            name: Name for people.
            model: Name of a model that the operator has configured.
            system: System prompt.
            tools: Tools of the agent. Default: those of a sandbox; empty for none.
            description: Description for people.
            metadata: Metadata of the user.

        Raises:
            InvalidRequestError: The model is not configured (``model_not_configured``), or a tool is not supported.
        """
        body = {"name": name, "model": model, "system": system, "tools": [dict(each) for each in tools], "description": description}
        body |= requests.omit_none(metadata=None if metadata is None else dict(metadata))
        return structure(AgentInfo, self._transport.request("POST", "/v1/agents", body=body))

    def list(self, *, archived: bool = False, limit: int | None = None) -> builtins.list[AgentInfo]:
        """List agents, newest first.

        Args:
            archived: Include archived agents.
            limit: Maximum number of agents. Default: all.
        """
        return backend.collected(self.iter(archived=archived, limit=limit))

    def iter(self, *, archived: bool = False, limit: int | None = None) -> Iterator[AgentInfo]:
        """Iterate over agents, newest first, and read them page by page. Arguments as for :meth:`list`."""
        params = requests.omit_none(archived="true" if archived else None)
        return self._transport.paginate("/v1/agents", "agents", AgentInfo, params=params, limit=limit)

    def get(self, agent: str) -> AgentInfo:
        """Get an agent by its id.

        Raises:
            NotFoundError: ``agent_not_found``.
        """
        return structure(AgentInfo, self._transport.request("GET", f"/v1/agents/{requests.path_segment(agent)}"))

    def update(
        self,
        agent: str,
        *,
        name: str | None = None,
        model: str | None = None,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        description: str | None = None,
        metadata: Mapping[str, str] | None = None,
        version: int | None = None,
    ) -> AgentInfo:
        """Change an agent. Values that are not given stay. Existing sessions keep the configuration with which they were created.

        Args:
            agent: Id of the agent.
            name: New name.
            model: New model.
            system: New system prompt.
            tools: New tools.
            description: New description.
            metadata: New metadata.
            version: Version that the caller has read; for an agent with another version, the update fails.

        Raises:
            NotFoundError: ``agent_not_found``.
            ConflictError: The agent has another version, or is archived.
        """
        body = requests.omit_none(
            name=name,
            model=model,
            system=system,
            tools=None if tools is None else [dict(each) for each in tools],
            description=description,
            metadata=None if metadata is None else dict(metadata),
            version=version,
        )
        return structure(AgentInfo, self._transport.request("PATCH", f"/v1/agents/{requests.path_segment(agent)}", body=body))

    def archive(self, agent: str) -> AgentInfo:
        """Archive an agent: it gets no new sessions and cannot be changed. Its sessions continue.

        Raises:
            NotFoundError: ``agent_not_found``.
        """
        return structure(AgentInfo, self._transport.request("POST", f"/v1/agents/{requests.path_segment(agent)}/archive"))

    def delete(self, agent: str) -> None:
        """Delete an agent. Its sessions are archived, which ends their runs and sandboxes; they stay readable.

        Raises:
            NotFoundError: ``agent_not_found``.
        """
        self._transport.request("DELETE", f"/v1/agents/{requests.path_segment(agent)}")


class AgentSessions:
    """The caller's sessions with agents; with an operator's key, everybody's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(
        self,
        agent: str,
        *,
        template: str | None = None,
        timeout: float | None = None,
        network: str | None = None,
        title: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AgentSessionInfo:
        """Create a session with an agent. Its sandbox is created with the first call of a tool.

        Args:
            agent: Id of the agent.
            template: Template of the sandbox. Default: ``code-interpreter``.
            timeout: Seconds until the sandbox ends, counted from its last use, 1 to 604,800. Default: 300.
            network: Network mode of the sandbox. Default: that of new sandboxes.
            title: Title for people.
            metadata: Metadata of the user.

        Raises:
            NotFoundError: ``agent_not_found`` or ``template_not_found``.
        """
        environment = requests.omit_none(template=template, timeout=timeout, network=network)
        body = requests.omit_none(agent=agent, environment=environment or None, title=title, metadata=None if metadata is None else dict(metadata))
        return structure(AgentSessionInfo, self._transport.request("POST", "/v1/agent-sessions", body=body))

    def list(self, *, agent: str | None = None, limit: int | None = None) -> builtins.list[AgentSessionInfo]:
        """List sessions, newest first.

        Args:
            agent: Only sessions of this agent, by its id.
            limit: Maximum number of sessions. Default: all.
        """
        return backend.collected(self.iter(agent=agent, limit=limit))

    def iter(self, *, agent: str | None = None, limit: int | None = None) -> Iterator[AgentSessionInfo]:
        """Iterate over sessions, newest first, and read them page by page. Arguments as for :meth:`list`."""
        params = requests.omit_none(agent=agent)
        return self._transport.paginate("/v1/agent-sessions", "sessions", AgentSessionInfo, params=params, limit=limit)

    def get(self, session: str) -> AgentSessionInfo:
        """Get a session by its id.

        Raises:
            NotFoundError: ``session_not_found``.
        """
        return structure(AgentSessionInfo, self._transport.request("GET", _path(session)))

    def update(self, session: str, *, title: str | None = None, metadata: Mapping[str, str] | None = None) -> AgentSessionInfo:
        """Change the title or the metadata of a session. Values that are not given stay.

        Raises:
            NotFoundError: ``session_not_found``.
        """
        body = requests.omit_none(title=title, metadata=None if metadata is None else dict(metadata))
        return structure(AgentSessionInfo, self._transport.request("PATCH", _path(session), body=body))

    def archive(self, session: str) -> AgentSessionInfo:
        """Archive a session: it takes no more messages. An active run and the sandbox are ended; events and files stay.

        Raises:
            NotFoundError: ``session_not_found``.
        """
        return structure(AgentSessionInfo, self._transport.request("POST", f"{_path(session)}/archive"))

    def delete(self, session: str) -> None:
        """Delete a session with its events and files. An active run and the sandbox of the session are ended.

        Raises:
            NotFoundError: ``session_not_found``.
        """
        self._transport.request("DELETE", _path(session))

    def send(self, session: str, content: str) -> AgentSessionInfo:
        """Send a message, which begins a run. :meth:`follow` yields the events of the run.

        Returns:
            The session, whose ``last_event`` is the last event before those of the model.

        Raises:
            NotFoundError: ``session_not_found``.
            ConflictError: A run of the session is active.
            LimitError: The key has too many active runs.
        """
        return structure(AgentSessionInfo, self._transport.request("POST", f"{_path(session)}/messages", body={"content": content}))

    def interrupt(self, session: str) -> bool:
        """Interrupt the run of a session, and wait for its end. Returns False if no run is active.

        Raises:
            NotFoundError: ``session_not_found``.
        """
        return bool((self._transport.request("POST", f"{_path(session)}/interrupt"))["running"])

    def events(self, session: str, *, after: int = 0) -> builtins.list[AgentEventInfo]:
        """List the events of a session, oldest first.

        Args:
            session: Id of the session.
            after: Only events with a larger ``sequence``.

        Raises:
            NotFoundError: ``session_not_found``.
        """
        found: builtins.list[AgentEventInfo] = []
        while True:
            params = {"after": found[-1].sequence if found else after, "limit": EVENTS_PAGE}
            response = self._transport.request("GET", f"{_path(session)}/events", params=params)
            found += structure_list(AgentEventInfo, response, "events")
            if not response["more"]:
                return found

    def follow(self, session: str, *, after: int = 0, until_idle: bool = True) -> Iterator[AgentEventInfo]:
        """Iterate over the stored events of a session and then over new ones. A broken stream is continued without a gap.

        Args:
            session: Id of the session.
            after: Only events with a larger ``sequence``, such as ``last_event`` of :meth:`send`.
            until_idle: End after the event ``session.status_idle`` or ``session.status_terminated``. False: go on until the session is deleted.

        Raises:
            NotFoundError: ``session_not_found``.
            UnavailableError: The service cannot be reached, also after several attempts.
        """
        messages = self._transport.follow(f"{_path(session)}/events", after=after, params={})
        try:
            for message in messages:
                yield structure(AgentEventInfo, message.data)
                if until_idle and message.name in {"session.status_idle", "session.status_terminated"}:
                    return
        finally:
            messages.close()


def _path(session: str) -> str:
    return f"/v1/agent-sessions/{requests.path_segment(session)}"
