"""Runs the sessions of agents on one node.

Invariants:
- A session has one run at a time. The runs of a key and of the node are limited.
- A run outlives the request that began it. An interruption, the archival or deletion of the session, the deletion of the agent, the end of its API
  key and the stop of the service end it.
- A start of the service ends the runs of the previous process with an error that says so. No call is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from sandlot.agents.service.limits import MAX_MESSAGE_BYTES, HostedRunLimits
from sandlot.agents.service.models import Models
from sandlot.agents.service.sandbox import SessionSandbox, find_sandbox
from sandlot.agents.service.tool_servers import SANDBOX_TOOLS, ToolServerEntry
from sandlot.core.node import Node
from sandlot.host.blocking import outlast_cancellation
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.agents import (
    AgentChange,
    AgentConfig,
    AgentRecord,
    AgentSessionRecord,
    SessionChange,
    SessionEnvironment,
    SessionStatus,
)
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.ids import AgentSessionId
from sandlot.model.specs import check_text
from sandlot.toolset.toolset import Toolset
from sandlot.web.preview_urls import PreviewAddresses

if TYPE_CHECKING:
    from sandlot.agents.service.run import Run

TOOLSET_TYPE: Final = "agent_toolset_20260401"
"""Type of tool by which clients of Anthropic's managed agents select the tools of the sandbox."""
RETENTION_INTERVAL_S: Final = 600.0
"""Seconds between two removals of unused sessions."""
MAX_REMOVED: Final = 1000
"""Number of sessions that one removal deletes."""
EVENTS_AT_END: Final = 256
"""Number of events in which the results of open calls are searched when a lost run is ended."""

_log = structlog.get_logger("sandlot.agents")


@dataclass(slots=True)
class _ActiveRun:
    owner: OwnerId
    run: Run | None = None
    task: asyncio.Task[None] | None = None
    is_interrupted: bool = False
    is_stopped: bool = False


class AgentRuntime:
    """Agents and sessions of a node, and their runs.

    Args:
        node: Node with the records and the sandboxes.
        models: Models of the operator.
        limits: Limits of runs.
        previews: Address of the previews. None: tools return no URLs.
        servers: MCP servers of the operator, by their names.
    """

    def __init__(
        self,
        node: Node,
        models: Models,
        limits: HostedRunLimits,
        previews: PreviewAddresses | None = None,
        servers: Mapping[str, ToolServerEntry] | None = None,
    ) -> None:
        self._node = node
        self._models = models
        self._limits = limits
        self._previews = previews
        self._servers = servers or {}
        self._runs: dict[AgentSessionId, _ActiveRun] = {}
        self._is_closed = False
        self._retention: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True while a run is active."""
        return bool(self._runs)

    # Life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """End the runs of the previous process, before any request, and begin to remove unused sessions.

        A run that cannot be ended stays active until the next start.
        """
        for session in await self._node.agents.running():
            try:
                await self._end_lost_run(session)
            except NotFoundError:
                continue  # the session was deleted
            except ModuleNotFoundError as error:
                _log.error("run.not_ended", session=session.id, error=str(error), hint="Install the extra `agents`, and restart the service.")
            except SandlotError as error:
                _log.warning("run.not_ended", session=session.id, error=str(error))
            except Exception:  # noqa: BLE001 - a stored run that cannot be read must not keep the service from its other work
                _log.exception("run.not_ended", session=session.id)

        self._retention = asyncio.create_task(self._retain(), name="agent retention")

    async def aclose(self) -> None:
        """Stop all runs. The next process of the service ends them. Idempotent."""
        self._is_closed = True
        tasks = []
        if self._retention is not None:
            self._retention.cancel()
            tasks.append(self._retention)
        for active in self._runs.values():
            if active.run is not None:
                active.run.is_abandoned = True
            if active.task is not None:
                active.task.cancel()
                tasks.append(active.task)
        if tasks:
            await asyncio.wait(tasks)
        await self._models.aclose()

    async def _retain(self) -> None:
        while True:
            try:
                await self.remove_unused()
            except Exception:  # noqa: BLE001 - the next removal tries again
                _log.exception("retention.failed")
            await asyncio.sleep(RETENTION_INTERVAL_S)

    async def remove_unused(self) -> int:
        """Delete the sessions of all owners that had no new event for ``session_keep_s`` seconds, and return their number."""
        removed = 0
        for session in await self._node.agents.unused(self._limits.session_keep_s, limit=MAX_REMOVED):
            try:
                with self._no_run(session):
                    found = await self._node.agents.get_session(OPERATOR, session.id)
                    if found.updated_at == session.updated_at:
                        await self._delete(OPERATOR, session.id)
                        removed += 1
            except (ConflictError, NotFoundError):
                continue  # a message has come, or the owner has deleted the session
            except SandlotError as error:
                _log.warning("retention.failed", session=session.id, error=str(error))
        if removed:
            _log.info("retention.dropped", agent_sessions=removed)
        return removed

    async def _end_lost_run(self, session: AgentSessionRecord) -> None:
        from sandlot.agents.service import conversation  # noqa: PLC0415 - imports pydantic-ai

        events: list[Any] = []
        messages: list[str] = []
        if calls := conversation.open_calls(conversation.load(await self._node.agents.messages(session.id))):
            stored = await self._node.agents.last_events(session.id, EVENTS_AT_END)
            events, message = conversation.close_calls(calls, stored, conversation.LOST)
            messages = [message]
        why = "The service was restarted during the run. The sandbox and its files are kept. Send another message to continue."
        events += [conversation.error_event("unknown_error", why, "exhausted"), conversation.idle_event("retries_exhausted")]
        sandbox = await find_sandbox(self._node, session) if session.sandbox is None else session.sandbox
        change = SessionChange(SessionStatus.IDLE, sandbox, stop_reason="retries_exhausted")
        await self._node.agents.append(session.id, events, messages=messages, change=change)

    # Agents and sessions ---------------------------------------------------------------------------------------------

    async def create(self, principal: Principal, config: AgentConfig) -> AgentRecord:
        """Create an agent.

        Raises:
            InvalidRequestError: The model is not configured, a tool is not supported, or a field is too long.
            LimitError: The owner has too many agents.
        """
        self._check(config.model, config.tools)
        return await self._node.agents.create(principal, config)

    async def update(self, principal: Principal, agent: str, change: AgentChange, *, version: int | None = None) -> AgentRecord:
        """Change the configuration of an agent.

        Raises:
            NotFoundError: There is no such agent.
            ConflictError: The agent has another version, or is archived.
            InvalidRequestError: The model is not configured, a tool is not supported, or a field is too long.
        """
        self._check(change.model, change.tools or ())
        return await self._node.agents.update(principal, agent, change, version=version)

    async def delete(self, principal: Principal, agent: str) -> None:
        """Archive all sessions of an agent, which ends their runs and sandboxes, and delete the agent. The sessions stay readable.

        If the deletion ends before its time, the agent is archived and can be deleted again.

        Raises:
            NotFoundError: There is no such agent.
            ConflictError: A message was sent to a session meanwhile, or the agent was changed.
        """
        agents = self._node.agents
        found = await agents.archive(principal, agent)  # from now on, there are no new sessions
        # An operator may have created sessions of the agents of others.
        while sessions := (await agents.list_sessions(OPERATOR, agent=found.id, archived=False)).items:
            for session in sessions:
                with suppress(NotFoundError):  # its owner has deleted the session
                    await self.archive_session(OPERATOR, session.id)
        await agents.delete(principal, found.id)

    async def create_session(
        self,
        principal: Principal,
        agent: str,
        environment: SessionEnvironment,
        *,
        title: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AgentSessionRecord:
        """Create a session. Its sandbox is created with the first call of a tool.

        Raises:
            NotFoundError: There is no such agent, or no such template.
            InvalidRequestError: The timeout of the environment is out of range.
            ConflictError: The agent is archived.
            LimitError: The owner has too many sessions, or its quota does not allow the timeout.
        """
        await self._node.templates.find(principal, environment.template)
        return await self._node.agents.create_session(principal, agent, environment, title=title, metadata=metadata)

    async def archive_session(self, principal: Principal, session: str) -> AgentSessionRecord:
        """End the run of a session and its sandbox. Its events and files stay; the session takes no more messages. Idempotent.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: A message was sent meanwhile.
        """
        async with self._without_run(principal, session):
            archived = await outlast_cancellation(self._node.agents.archive_session(principal, session))
        await self._end_sandbox(principal, archived)
        return archived

    async def delete_session(self, principal: Principal, session: str) -> None:
        """End the run of a session and its sandbox, and delete its files, events and the session.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: A message was sent meanwhile.
        """
        async with self._without_run(principal, session) as found:
            await self._delete(principal, found.id)

    async def _delete(self, principal: Principal, session: AgentSessionId) -> None:
        found = await self._node.agents.get_session(principal, session)
        await self._delete_files(principal, found.id)
        await self._end_sandbox(principal, found)
        await self._node.agents.delete_session(principal, session)

    # Runs ------------------------------------------------------------------------------------------------------------

    async def send(self, principal: Principal, session: str, text: str) -> AgentSessionRecord:
        """Send a message of the user to a session, which begins a run.

        Args:
            principal: Caller, the owner of the session.
            session: Id of the session.
            text: The message.

        Returns:
            The session, whose status is ``running``.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: A run of the session is active.
            InvalidRequestError: The message is too long or empty, or the operator does not offer the model or a tool any more.
            LimitError: The key or the node has too many active runs.
        """
        size = len(check_text("content", text))
        if not 0 < size <= MAX_MESSAGE_BYTES:
            raise InvalidRequestError(f"The message has {size} bytes; 1 to {MAX_MESSAGE_BYTES} are allowed.", fields={"field": "content"})
        found = await self._node.agents.get_session(principal, session)
        if found.status is not SessionStatus.RUNNING:
            await self.wait(found.id)  # the last run has stored its end and is about to leave
        return await outlast_cancellation(self._begin(principal, found, text))

    async def _begin(self, principal: Principal, session: AgentSessionRecord, text: str) -> AgentSessionRecord:
        entry, model = self._models.entry(session.config.model), self._models.build(session.config.model)
        self._check_tools(session.config.tools)
        from sandlot.agents.service import conversation  # noqa: PLC0415 - imports pydantic-ai
        from sandlot.agents.service.run import Run, RunParameters  # noqa: PLC0415

        active = self._take_place(principal, session.id)
        try:
            event, message = conversation.user_message(text)
            begun = await self._node.agents.begin_run(principal, session.id, [event, ("session.status_running", {})], messages=[message])
        except BaseException:
            del self._runs[session.id]
            raise
        named = dict.fromkeys(SANDBOX_TOOLS if tool["type"] == TOOLSET_TYPE else tool["server"] for tool in begun.config.tools)
        toolset = Toolset() if SANDBOX_TOOLS in named else Toolset(())
        servers = tuple(self._servers[name] for name in named if name != SANDBOX_TOOLS)
        sandbox = SessionSandbox(self._node, principal, begun, self._previews)
        active.run = Run(self._node, principal, begun, sandbox, RunParameters(entry, model, toolset, self._limits, servers))
        active.task = asyncio.create_task(self._execute(begun.id, active.run), name=f"agent run {begun.id}")
        return begun

    async def interrupt(self, principal: Principal, session: str) -> bool:
        """Interrupt the run of a session, and wait until it has ended. Return False if no run is active.

        Raises:
            NotFoundError: There is no such session.
        """
        found = await self._node.agents.get_session(principal, session)
        active = self._runs.get(found.id)
        if active is None or active.task is None:
            return False
        if not active.is_interrupted:
            active.is_interrupted = True
            await self._node.agents.append(found.id, [("user.interrupt", {})])
        await self._stop(found.id)
        return True

    async def wait(self, session: AgentSessionId) -> None:
        """Wait until no run of a session is active on this node."""
        active = self._runs.get(session)
        if active is not None and active.task is not None:
            await asyncio.wait([active.task])

    async def _execute(self, session: AgentSessionId, run: Run) -> None:
        try:
            await run.execute()
        finally:
            del self._runs[session]

    async def _stop(self, session: AgentSessionId) -> None:
        active = self._runs.get(session)
        if active is not None and active.task is not None:
            if not active.is_stopped:  # a second cancellation would interrupt the end of the run
                active.is_stopped = True
                active.task.cancel()
            await asyncio.wait([active.task])

    def _take_place(self, principal: Principal, session: AgentSessionId) -> _ActiveRun:
        """Reserve the place of a run."""
        if self._is_closed:
            raise UnavailableError("The service is stopping.", code=ErrorCode.SERVICE_STOPPING, hint="Try again when the service has restarted.")
        if session in self._runs:
            raise _running(session)
        of_key = sum(each.owner == principal.owner for each in self._runs.values())
        if of_key >= self._limits.runs_per_key:
            raise LimitError(f"This key has {of_key} active runs of agents, the maximum.", hint="Wait until one has ended, or interrupt one.")
        if len(self._runs) >= self._limits.runs:
            raise UnavailableError(
                f"The node has {len(self._runs)} active runs of agents, the maximum.",
                code=ErrorCode.BUSY,
                hint="Try again later.",
                fields={"retry_after_s": 5},
            )
        self._runs[session] = active = _ActiveRun(principal.owner)
        return active

    @asynccontextmanager
    async def _without_run(self, principal: Principal, session: str) -> AsyncIterator[AgentSessionRecord]:
        """End the run of a session, and let no other begin meanwhile. Provides the session as it was before.

        Raises:
            NotFoundError: There is no such session.
            ConflictError: A message was sent meanwhile.
        """
        found = await self._node.agents.get_session(principal, session)
        await self._stop(found.id)
        with self._no_run(found):
            yield found

    @contextmanager
    def _no_run(self, session: AgentSessionRecord) -> Iterator[None]:
        """Let no run of a session begin meanwhile.

        Raises:
            ConflictError: A run is active.
        """
        if session.id in self._runs:
            raise _running(session.id)
        self._runs[session.id] = _ActiveRun(session.owner)
        try:
            yield
        finally:
            del self._runs[session.id]

    async def _end_sandbox(self, principal: Principal, session: AgentSessionRecord) -> None:
        if session.sandbox is not None:
            with suppress(NotFoundError):  # the sandbox has ended, and its record was deleted
                await self._node.sandboxes.kill(principal, session.sandbox)

    async def _delete_files(self, principal: Principal, session: AgentSessionId) -> None:
        after = 0
        while True:
            page = await self._node.agents.events(principal, session, after=after, limit=1000)
            for event in page.items:
                for block in event.data.get("content", ()):
                    if block.get("type") == "image":
                        try:
                            await self._node.file_store.delete(principal, block["source"]["file_id"])
                        except NotFoundError:
                            continue  # the owner has deleted the file
                after = event.sequence
            if not page.more:
                return

    def _check(self, model: str | None, tools: Sequence[Mapping[str, Any]]) -> None:
        if model is not None:
            self._models.entry(model)
        self._check_tools(tools)

    def _check_tools(self, tools: Sequence[Mapping[str, Any]]) -> None:
        names = [SANDBOX_TOOLS, *sorted(self._servers)]
        for tool in tools:
            if tool.get("type") == TOOLSET_TYPE or (tool.get("type") == "mcp" and tool.get("server") in names):
                continue
            others = f" The operator has configured these MCP servers: {', '.join(names[1:])}." if self._servers else ""
            raise InvalidRequestError(
                f"The tool {str(dict(tool))[:200]} is not supported.",
                hint=f'Pass {{"type": "mcp", "server": "{SANDBOX_TOOLS}"}} for the tools of the sandbox.{others}',
                fields={"field": "tools", "servers": names},
            )


def _running(session: AgentSessionId) -> ConflictError:
    return ConflictError(f"The session {session} is running.", hint="Wait until its status is `idle`, or interrupt the run first.")
