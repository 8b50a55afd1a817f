"""One run of a session: requests to the model and calls of tools, until the model has answered.

Invariants:
- An event is stored before anybody sees it, together with the message of the conversation that it shows. A killed service leaves a conversation that
  can be continued.
- A call of a tool is made once. Its result is stored before the next call begins.
- A run ends with ``session.status_idle`` and the status ``idle``, stored together. If it did not end by an answer, ``session.error`` names the cause.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import structlog
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from sandlot.agents.service import conversation
from sandlot.agents.service.conversation import Call, Event
from sandlot.agents.service.limits import MAX_CONVERSATION_BYTES, HostedRunLimits
from sandlot.agents.service.models import ModelEntry
from sandlot.agents.service.tool_servers import ServerTool, ServerTools, ToolServerEntry, ToolServerError, connect
from sandlot.core.node import Node
from sandlot.host.blocking import outlast_cancellation
from sandlot.model.access import Principal
from sandlot.model.agents import AgentSessionRecord, SessionChange, SessionStatus
from sandlot.model.errors import AuthenticationError, NotFoundError, SandlotError
from sandlot.toolset.tools import Tool
from sandlot.toolset.toolset import Toolset

if TYPE_CHECKING:
    from sandlot.agents.service.sandbox import SessionSandbox

END_TURN: Final = "end_turn"
BUDGET_REACHED: Final = "budget_reached"
RETRIES_EXHAUSTED: Final = "retries_exhausted"
REFUSAL: Final = "refusal"
EVENTS_BESIDE_RESULTS: Final = 4
"""Maximum number of events that are stored between the results of the calls of one message: interruptions by the user."""
MAX_ERROR_CHARS: Final = 2000
"""Length of the text of an endpoint in an error."""

_log = structlog.get_logger("sandlot.agents")


class _RunEnd(Exception):  # noqa: N818 - not always an error
    """End of a run before the model's answer.

    Args:
        stop_reason: Stop reason of the session.
        event: Event that names the cause. None: the cause needs no event.
    """

    def __init__(self, stop_reason: str, event: Event | None = None) -> None:
        super().__init__(stop_reason)
        self.stop_reason = stop_reason
        self.event = event


@dataclass(frozen=True, slots=True)
class RunParameters:
    """Everything that a run needs besides its session.

    Args:
        entry: The model.
        model: Client of the model.
        toolset: Tools of the sandbox that the model may call.
        limits: Limits of the run.
        servers: MCP servers whose tools the model may call.
    """

    entry: ModelEntry
    model: Model
    toolset: Toolset
    limits: HostedRunLimits
    servers: tuple[ToolServerEntry, ...] = ()


class Run:
    """A run of a session that was begun.

    Args:
        node: Node that stores the events and messages.
        principal: Owner of the session. The end of its API key ends the run.
        session: The session at the begin of the run.
        sandbox: Sandbox of the session.
        parameters: Model, tools and limits.
    """

    def __init__(self, node: Node, principal: Principal, session: AgentSessionRecord, sandbox: SessionSandbox, parameters: RunParameters) -> None:
        self._agents = node.agents
        self._keys = node.keys
        self._principal = principal
        self._session = session
        self._sandbox = sandbox
        self._parameters = parameters
        self._messages: list[ModelMessage] = []
        self._stored_bytes = 0
        self._usage = session.usage
        self._requests = 0
        self._calls = 0
        self.is_abandoned = False
        """True before a cancellation that stops the service: the run stays active in the store, and the next process of the service ends it."""

    async def execute(self) -> None:
        """Run until the model has answered, a limit is reached or the run fails. A cancellation is an interruption by the user."""
        try:
            try:
                async with asyncio.timeout(self._parameters.limits.run_s):
                    with self._keys.working_for(self._principal):
                        await self._converse()
                end = _RunEnd(END_TURN)
            except TimeoutError:
                end = self._limit(f"The run has taken {self._parameters.limits.run_s:g} seconds, the maximum.")
            except _RunEnd as reached:
                end = reached
            except asyncio.CancelledError:
                if self.is_abandoned:
                    raise
                end = _RunEnd(END_TURN)
            except NotFoundError:
                raise
            except AuthenticationError as error:
                end = _RunEnd(RETRIES_EXHAUSTED, conversation.error_event("unknown_error", str(error), "terminal"))
            except SandlotError as error:
                end = _RunEnd(RETRIES_EXHAUSTED, conversation.error_event("unknown_error", str(error), "exhausted"))
            except Exception:  # noqa: BLE001 - a defect ends the run, not the service
                _log.exception("run.defect", session=self._session.id)
                end = _RunEnd(
                    RETRIES_EXHAUSTED, conversation.error_event("unknown_error", "The service has a defect; its log has the details.", "exhausted")
                )
            await outlast_cancellation(self._end(end))
        except NotFoundError:
            pass  # the session was deleted

    async def _converse(self) -> None:
        try:
            async with connect(self._parameters.servers) as servers:
                await self._answer(servers)
        except ToolServerError as error:
            event = conversation.error_event("mcp_connection_failed_error", str(error), "exhausted", error.server)
            raise _RunEnd(RETRIES_EXHAUSTED, event) from None

    async def _answer(self, servers: ServerTools) -> None:
        stored = await self._agents.messages(self._session.id)
        self._stored_bytes = sum(map(len, stored))
        self._messages = conversation.load(stored)
        known_calls = conversation.call_ids(self._messages)
        while True:
            answer = conversation.read_reply(await self._request(servers), known_calls)
            await self._store(answer.events, answer.message)
            if answer.refused:
                raise _RunEnd(REFUSAL)
            if answer.cut_off:
                tokens = self._parameters.entry.max_output_tokens
                raise self._limit(f"The response of the model has {tokens} tokens, the maximum, and was cut off.")
            if not answer.calls:
                return
            await self._run_calls(answer.calls, servers)

    async def _request(self, servers: ServerTools) -> Any:  # noqa: ANN401 - ModelResponse
        self._check_budget()
        self._requests += 1
        parameters = self._parameters
        offered: list[Tool | ServerTool] = [*parameters.toolset.tools.values(), *servers.tools]
        tools = [ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.input_schema) for tool in offered]
        messages = conversation.with_instructions(self._messages, self._session.config.system)
        settings = ModelSettings(max_tokens=parameters.entry.max_output_tokens, timeout=parameters.entry.timeout)
        request = ModelRequestParameters(function_tools=tools, allow_text_output=True)
        try:
            response = await model_request(parameters.model, messages, model_settings=settings, model_request_parameters=request)
        except ContentFilterError:
            raise _RunEnd(REFUSAL) from None
        except (ModelAPIError, UnexpectedModelBehavior) as error:
            raise _RunEnd(RETRIES_EXHAUSTED, _model_error(parameters.entry, error)) from None
        used = response.usage
        cost = parameters.entry.cost_usd(used.input_tokens, used.output_tokens) or 0.0
        self._usage = replace(
            self._usage,
            model_requests=self._usage.model_requests + 1,
            input_tokens=self._usage.input_tokens + used.input_tokens,
            output_tokens=self._usage.output_tokens + used.output_tokens,
            cost_usd=self._usage.cost_usd + cost,
        )
        return response

    async def _run_calls(self, calls: tuple[Call, ...], servers: ServerTools) -> None:
        parts: list[ModelRequestPart] = []
        for call in calls:
            if self._calls >= self._parameters.limits.tool_calls:
                raise self._limit(f"The run has called tools {self._calls} times, the maximum.", "tool_use_limit_reached_error")
            self._calls += 1
            self._usage = replace(self._usage, tool_calls=self._usage.tool_calls + 1)
            if call.problem is not None:
                event, part = conversation.failed_event(call.id, call.problem), conversation.failed_part(call, call.problem)
            else:
                if call.name in servers:
                    result = await servers.call(call.name, call.arguments)
                else:
                    result = await self._parameters.toolset.call(call.name, call.arguments, self._sandbox.open)
                if result.sandbox_ended:
                    self._sandbox.forget()
                files, result = await self._sandbox.store_images(result)
                event, part = conversation.result_event(call.id, result, files), conversation.result_part(call, result)
            parts.append(part)
            await self._store((event,))
        await self._store((), ModelRequest(parts))

    async def _store(self, events: tuple[Event, ...], message: ModelMessage | None = None) -> None:
        messages = [] if message is None else [conversation.dump(message)]
        change = SessionChange(usage=self._usage, sandbox=self._sandbox.id)
        await outlast_cancellation(self._agents.append(self._session.id, events, messages=messages, change=change))
        if message is not None:
            self._messages.append(message)
            self._stored_bytes += len(messages[0])

    async def _end(self, end: _RunEnd) -> None:
        events = [] if end.event is None else [end.event]
        messages = []
        if calls := conversation.open_calls(self._messages):
            stored = await self._agents.last_events(self._session.id, len(calls) + EVENTS_BESIDE_RESULTS)
            closing, message = conversation.close_calls(calls, stored, conversation.INTERRUPTED)
            events, messages = [*closing, *events], [message]
        change = SessionChange(SessionStatus.IDLE, self._sandbox.id, end.stop_reason, self._usage)
        await self._agents.append(self._session.id, [*events, conversation.idle_event(end.stop_reason)], messages=messages, change=change)

    def _check_budget(self) -> None:
        limits, usage = self._parameters.limits, self._usage
        if self._requests >= limits.model_requests:
            raise self._limit(f"The run has sent {self._requests} requests to the model, the maximum.")
        if limits.session_tokens is not None and usage.input_tokens + usage.output_tokens >= limits.session_tokens:
            raise self._limit(f"The session has used {usage.input_tokens + usage.output_tokens} tokens; {limits.session_tokens} are allowed.")
        if limits.session_cost_usd is not None and usage.cost_usd >= limits.session_cost_usd:
            raise self._limit(f"The session has cost {usage.cost_usd:.2f} US dollars; {limits.session_cost_usd:g} are allowed.")
        if self._stored_bytes > MAX_CONVERSATION_BYTES:
            raise self._limit("The conversation is too long. Create another session.")

    def _limit(self, message: str, kind: str = "unknown_error") -> _RunEnd:
        return _RunEnd(BUDGET_REACHED, conversation.error_event(kind, message, "exhausted"))


def _model_error(entry: ModelEntry, error: ModelAPIError | UnexpectedModelBehavior) -> Event:
    status = error.status_code if isinstance(error, ModelHTTPError) else None
    kind = "model_request_failed_error"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        kind = "model_rate_limited_error"
    elif status is not None and status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "model_overloaded_error"
    why = f"its endpoint responded with status {status}" if status is not None else str(error)[:MAX_ERROR_CHARS]
    return conversation.error_event(kind, f"The request to the model {entry.name!r} failed: {why}.", "exhausted")
