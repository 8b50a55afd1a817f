"""The agent loop: a model works in a sandbox until it answers, or until a limit is reached.

Invariants:
- Each tool call has a result in the conversation, also at a limit, so that the conversation can be continued.
- A wrong call is answered to the model. Only errors of the model's service and of creating the client reach the caller.
- No limit is exceeded by more than one answer of the model.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio

from sandlot.agents.models.base import Answer, ModelConversation, Setup, Stop, ToolCall, Usage
from sandlot.agents.models.chat import ChatModel
from sandlot.agents.models.messages import MessagesModel
from sandlot.agents.models.responses import ResponsesModel
from sandlot.agents.prices import Price, find_price, require_price
from sandlot.agents.sandbox_tools import CUT_OFF, AsyncSandboxTools, SandboxTools, run_parallel
from sandlot.agents.transcript import TranscriptFile, content_of
from sandlot.model.errors import InvalidRequestError, UnavailableError
from sandlot.sdk._async import backend
from sandlot.toolset.output import ToolResult, invalid_call

Api: TypeAlias = Literal["chat", "responses"]
RunStop: TypeAlias = Stop | Literal["turns", "calls", "time", "tokens", "cost"]

MAX_OUTPUT_TOKENS: Final = 8192
MAX_REPEATS: Final = 2
"""Number of times that a request is repeated whose answer broke off. Its client repeats refused requests."""


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Limits of a run. A run ends by itself at the first one that it reaches; None: no limit.

    Args:
        turns: Requests to the model.
        calls: Tool calls.
        time_s: Seconds, tool calls included. A program that runs then is interrupted.
        tokens: Input and output tokens together, checked after each answer.
        cost_usd: US dollars, checked after each answer. The price of the model must be known.
    """

    turns: int | None = 50
    calls: int | None = 200
    time_s: float | None = 1200.0
    tokens: int | None = None
    cost_usd: float | Decimal | None = None


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Event: the model wrote text."""

    text: str


@dataclass(frozen=True, slots=True)
class AnswerDiscarded:
    """Event: the stream of an answer broke, and the request is repeated. The text of the turn so far is void."""

    turn: int


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """Event: an answer is complete.

    Args:
        turn: Number of the request, from 1.
        answer: The answer.
        cost_usd: Cost of the run so far; None if the price is not known.
    """

    turn: int
    answer: Answer
    cost_usd: Decimal | None


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Event: a tool call starts. Calls of one answer run at the same time."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallOutput:
    """Event: the program of a call printed text."""

    call: ToolCall
    text: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """Event: a tool call has its result."""

    call: ToolCall
    result: ToolResult
    duration_s: float


AgentEvent: TypeAlias = TextPiece | AnswerDiscarded | AnswerFinished | CallStarted | CallOutput | CallFinished
"""Event of a run, for ``on_event``."""
OnEvent: TypeAlias = backend.Callback[AgentEvent]


@dataclass(slots=True)
class AgentRun:
    """Outcome of a run.

    Args:
        text: Text of the last answer.
        stop: ``answered``; ``refused``, ``truncated`` or ``failed`` by the model; or the limit that ended the run: ``turns``, ``calls``, ``time``,
            ``tokens`` or ``cost``.
        turns: Number of requests to the model.
        calls: Number of tool calls.
        usage: Tokens of all answers.
        cost_usd: Cost of all answers in US dollars; None if the price is not known.
        duration_s: Seconds.
        messages: The whole conversation, in the form of the client. ``run(..., messages=run.messages)`` continues it.
        sandbox_id: Id of the last sandbox; None if no tool was called.
        problem: Message of a failed answer.
    """

    text: str = ""
    stop: RunStop = "answered"
    turns: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_usd: Decimal | None = None
    duration_s: float = 0.0
    messages: list[Any] = field(default_factory=list)
    sandbox_id: str | None = None
    problem: str = ""

    @property
    def ok(self) -> bool:
        """True if the model answered."""
        return self.stop == "answered"


def run(  # noqa: PLR0913 - passed by name
    client: object,
    model: str,
    prompt: str,
    *,
    system: str = "",
    tools: SandboxTools | None = None,
    limits: AgentLimits = AgentLimits(),
    api: Api = "chat",
    max_output_tokens: int = MAX_OUTPUT_TOKENS,
    messages: Sequence[Any] = (),
    transcript: str | os.PathLike[str] | None = None,
    on_event: OnEvent | None = None,
    options: Mapping[str, Any] | None = None,
) -> AgentRun:
    """Let a model work on a task in a sandbox, and return its answer.

    Args:
        client: Client of ``anthropic`` or ``openai``, synchronous or asynchronous.
        model: Name of the model.
        prompt: Task.
        system: System prompt.
        tools: Tools and their sandbox, which are not closed. Default: all tools in a new sandbox, which ends with the run.
        limits: Limits of the run.
        api: API of an OpenAI client: ``chat`` (also of compatible services) or ``responses`` (with images).
        max_output_tokens: Limit of output tokens of each answer.
        messages: Earlier conversation, such as ``messages`` of another run.
        transcript: File to which the run is appended as it happens, one JSON object in each line.
        on_event: Called with each event, in a thread.
        options: Further arguments of each request, such as ``temperature``.

    Raises:
        InvalidRequestError: The client is of another package, or ``limits`` has a cost and the price of the model is not known.
    """

    async def work(inner: AsyncSandboxTools) -> AgentRun:
        return await run_async(
            client,
            model,
            prompt,
            system=system,
            tools=inner,
            limits=limits,
            api=api,
            max_output_tokens=max_output_tokens,
            messages=messages,
            transcript=transcript,
            on_event=on_event,
            options=options,
        )

    if tools is not None:
        return tools.drive(work)
    with SandboxTools(images=_shows_images(client, api)) as own:
        return own.drive(work)


async def run_async(  # noqa: PLR0913 - passed by name
    client: object,
    model: str,
    prompt: str,
    *,
    system: str = "",
    tools: AsyncSandboxTools | None = None,
    limits: AgentLimits = AgentLimits(),
    api: Api = "chat",
    max_output_tokens: int = MAX_OUTPUT_TOKENS,
    messages: Sequence[Any] = (),
    transcript: str | os.PathLike[str] | None = None,
    on_event: OnEvent | None = None,
    options: Mapping[str, Any] | None = None,
) -> AgentRun:
    """Do the same as :func:`run` in an event loop. ``tools`` are asynchronous, and ``on_event`` may be a coroutine function."""
    vendor = _vendor(client)
    price = find_price(vendor, model) if limits.cost_usd is None else require_price(vendor, model)
    async with AsyncExitStack() as resources:
        if tools is None:
            tools = await resources.enter_async_context(AsyncSandboxTools(images=_shows_images(client, api)))
        setup = Setup(model, system, tools.tools, max_output_tokens, options or {})
        conversation = _model(vendor, api, client, setup, [*messages, {"role": "user", "content": prompt}])
        file = TranscriptFile(transcript)
        resources.callback(file.close)
        names = [tool.name for tool in tools.tools]
        file.write("start", model=model, api=api if vendor == "openai" else "messages", system=system, prompt=prompt, tools=names)
        try:
            return await _Loop(conversation, tools, limits, price, file, on_event).run()
        except BaseException as error:
            file.write("error", error=f"{type(error).__name__}: {error}")
            raise


class _Loop:
    def __init__(
        self,
        conversation: ModelConversation,
        tools: AsyncSandboxTools,
        limits: AgentLimits,
        price: Price | None,
        file: TranscriptFile,
        on_event: OnEvent | None,
    ) -> None:
        self._conversation = conversation
        self._tools = tools
        self._limits = limits
        self._price = price
        self._file = file
        self._on_event = on_event
        self._outcome = AgentRun(messages=conversation.messages, cost_usd=None if price is None else Decimal(0))
        self._results: dict[int, ToolResult] = {}

    async def run(self) -> AgentRun:
        outcome, began = self._outcome, time.monotonic()
        answer: Answer | None = None  # whose calls have no results yet
        with anyio.move_on_after(self._limits.time_s) as scope:
            while True:
                answer = await self._ask()
                if (stop := self._ending(answer)) is not None:
                    outcome.stop = stop
                    break
                if answer.calls:
                    await self._call_all(answer.calls)
                    self._conversation.append_results(self._take_results(answer.calls, ""))
                answer = None
        if scope.cancelled_caught:
            outcome.stop = "time"
        if answer is not None and answer.calls:
            self._conversation.append_results(self._take_results(answer.calls, outcome.stop))
        outcome.duration_s = time.monotonic() - began
        outcome.sandbox_id = self._tools.sandbox_id
        self._file.write(
            "end", stop=outcome.stop, text=outcome.text, turns=outcome.turns, calls=outcome.calls, **self._spent(), problem=outcome.problem
        )
        return outcome

    def _ending(self, answer: Answer) -> RunStop | None:
        """Return the reason why the run ends after an answer; None if it goes on."""
        if answer.stop in {"answered", "refused", "failed"} or (answer.stop == "truncated" and not answer.calls):
            return answer.stop
        return self._exceeded(len(answer.calls))

    def _exceeded(self, calls: int) -> RunStop | None:
        limits, outcome = self._limits, self._outcome
        if limits.tokens is not None and outcome.usage.tokens >= limits.tokens:
            return "tokens"
        if limits.cost_usd is not None and outcome.cost_usd is not None and outcome.cost_usd >= Decimal(str(limits.cost_usd)):
            return "cost"
        if limits.calls is not None and outcome.calls + calls > limits.calls:
            return "calls"
        return "turns" if outcome.turns == limits.turns else None

    async def _ask(self) -> Answer:
        outcome, began = self._outcome, time.monotonic()
        for repeat in range(MAX_REPEATS + 1):
            outcome.turns += 1
            try:
                return await self._record(await self._conversation.ask(self._emit_text), began)
            except UnavailableError:
                if repeat == MAX_REPEATS or outcome.turns == self._limits.turns:
                    raise
            await self._emit(AnswerDiscarded(outcome.turns))
        raise AssertionError  # the last repeat returns or raises

    async def _record(self, answer: Answer, began: float) -> Answer:
        outcome = self._outcome
        outcome.text, outcome.problem = answer.text, answer.problem
        outcome.usage += answer.usage
        if self._price is not None:
            outcome.cost_usd = (outcome.cost_usd or Decimal(0)) + self._price(answer.usage)
        self._file.write(
            "answer",
            turn=outcome.turns,
            text=answer.text,
            calls=[{"id": call.id, "name": call.name, "arguments": call.arguments} for call in answer.calls],
            stop=answer.stop,
            usage=asdict(answer.usage),
            duration_s=time.monotonic() - began,
        )
        await self._emit(AnswerFinished(outcome.turns, answer, outcome.cost_usd))
        return answer

    async def _call_all(self, calls: Sequence[ToolCall]) -> None:
        await run_parallel([partial(self._call, index, call) for index, call in enumerate(calls)])

    async def _call(self, index: int, call: ToolCall) -> None:
        self._outcome.calls += 1
        began = time.monotonic()
        await self._emit(CallStarted(call))
        if call.is_cut:
            result = invalid_call(CUT_OFF)
        else:
            result = await self._tools.call(call.name, call.arguments, on_output=lambda text: self._emit(CallOutput(call, text)))
        duration_s = time.monotonic() - began
        self._results[index] = result
        self._note(call, result, duration_s)
        await self._emit(CallFinished(call, result, duration_s))

    def _take_results(self, calls: Sequence[ToolCall], stop: str) -> list[tuple[ToolCall, ToolResult]]:
        """Return the results of calls; those that a limit has stopped say so."""
        pairs = []
        for index, call in enumerate(calls):
            result = self._results.pop(index, None)
            if result is None:
                result = invalid_call(f"The limit of {stop} was reached, so that the call was not run to its end.")
                self._note(call, result, 0.0)
            pairs.append((call, result))
        return pairs

    def _note(self, call: ToolCall, result: ToolResult, duration_s: float) -> None:
        self._file.write(
            "result",
            call=call.id,
            name=call.name,
            content=content_of(result),
            is_error=result.is_error,
            fault=None if result.fault is None else str(result.fault),
            sandbox=self._tools.sandbox_id,
            execution=result.execution,
            duration_s=duration_s,
        )

    def _spent(self) -> dict[str, Any]:
        cost = self._outcome.cost_usd
        return {"usage": asdict(self._outcome.usage), "cost_usd": None if cost is None else str(cost), "duration_s": self._outcome.duration_s}

    async def _emit(self, event: AgentEvent) -> None:
        await backend.call(self._on_event, event)

    async def _emit_text(self, text: str) -> None:
        await self._emit(TextPiece(text))


def _vendor(client: object) -> str:
    packages = {each.__module__.partition(".")[0] for each in type(client).__mro__}
    for vendor in ("anthropic", "openai"):
        if vendor in packages:
            return vendor
    raise InvalidRequestError(f"{type(client).__name__} is not a client of `anthropic` or `openai`.", hint="Pass such a client.")


def _shows_images(client: object, api: Api) -> bool:
    return _vendor(client) == "anthropic" or api == "responses"


def _model(vendor: str, api: Api, client: object, setup: Setup, messages: list[Any]) -> ModelConversation:
    if vendor == "anthropic":
        return MessagesModel(client, setup, messages)
    return ResponsesModel(client, setup, messages) if api == "responses" else ChatModel(client, setup, messages)
