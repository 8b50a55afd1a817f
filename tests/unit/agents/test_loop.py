"""The agent loop with real clients against a scripted model, in sandboxes of the in-memory service."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import anthropic
import anyio
import anyio.lowlevel
import anyio.to_thread
import openai
import pytest

from sandlot.agents import (
    AgentEvent,
    AgentLimits,
    AgentRun,
    AnswerDiscarded,
    AnswerFinished,
    AsyncSandboxTools,
    CallFinished,
    CallOutput,
    CallStarted,
    SandboxTools,
    TextPiece,
    read_transcript,
    run,
    run_async,
)
from sandlot.model.errors import InvalidRequestError, UnavailableError
from sandlot.sdk import AsyncClient, Client
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import MIB, Call, Conversation, Cut, Fail, Hang, Say, Script, Step, Truncate

PROTOCOLS = pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
MODEL = "claude-opus-4-5"
"""A model whose price is known to Anthropic's list."""


@asynccontextmanager
async def client_of(endpoint: Endpoint, protocol: str) -> AsyncIterator[Any]:
    made: Any
    if protocol == "messages":
        made = anthropic.AsyncAnthropic(base_url=endpoint.address, api_key="k")
    else:
        made = openai.AsyncOpenAI(base_url=endpoint.openai_url, api_key="k")
    async with made:
        yield made


def api_of(protocol: str) -> Literal["chat", "responses"]:
    return "responses" if protocol == "responses" else "chat"


class Runner:
    """Runs a script with one protocol, and keeps the endpoint and the events."""

    def __init__(self, protocol: str, tools: AsyncSandboxTools) -> None:
        self.protocol = protocol
        self.tools = tools
        self.events: list[AgentEvent] = []
        self.conversations: list[Conversation] = []
        self.refused: list[str] = []

    async def __call__(self, script: Script, prompt: str = "Go.", **options: Any) -> AgentRun:  # noqa: ANN401
        with scripted_model(script) as endpoint:
            try:
                async with client_of(endpoint, self.protocol) as client:
                    options = {"on_event": self.events.append, "api": api_of(self.protocol), "tools": self.tools, **options}
                    return await run_async(client, "scripted", prompt, **options)
            finally:
                self.conversations += endpoint.conversations
                self.refused += endpoint.refused

    def results(self) -> list[str]:
        return [result.text for result in self.conversations[-1].results]


@pytest.fixture(params=["chat", "messages", "responses"])
async def agent(request: pytest.FixtureRequest, tools: AsyncSandboxTools) -> Runner:
    return Runner(request.param, tools)


@pytest.fixture
async def chat_agent(tools: AsyncSandboxTools) -> Runner:
    """For behaviour that does not depend on the protocol."""
    return Runner("chat", tools)


def one_by_one(*steps: Step | list[Step]) -> Script:
    """Answer with the step after as many answers as there are results or text; the last step is repeated."""
    remaining = list(steps)
    return lambda _: remaining.pop(0) if len(remaining) > 1 else remaining[0]


async def test_answer_has_the_figure_from_the_sandbox(agent: Runner) -> None:
    def script(conversation: Conversation) -> Step:
        if not conversation.results:
            return Call("run_code", {"code": "print(6 * 7)"})
        return Say(f"It is {conversation.results[0].text}.")

    outcome = await agent(script, "What is six times seven?", system="Use the sandbox.")
    assert (outcome.text, outcome.stop, outcome.ok, outcome.turns, outcome.calls) == ("It is 42.", "answered", True, 2, 1)
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens, outcome.cost_usd) == (200, 20, None)
    assert outcome.sandbox_id == agent.tools.sandbox_id
    assert (agent.conversations[0].prompts, agent.conversations[0].system) == (("What is six times seven?",), "Use the sandbox.")
    assert agent.conversations[0].tools[:2] == ("run_code", "run_command")


async def test_parallel_calls_run_at_the_same_time(agent: Runner) -> None:
    wait = "while [ ! -e {other} ]; do sleep 0.01; done; echo {name}"
    calls: list[Step] = [
        Say("Both."),
        Call("run_command", {"command": f"touch /tmp/a; {wait.format(other='/tmp/b', name='first')}"}),
        Call("run_command", {"command": f"touch /tmp/b; {wait.format(other='/tmp/a', name='second')}"}),
    ]
    await agent(one_by_one(calls, Say("Done.")))
    assert agent.results() == ["first", "second"]


async def test_events_tell_what_happens_in_order(agent: Runner) -> None:
    await agent(one_by_one([Say("I look."), Call("run_command", {"command": "echo seen"})], Say("Done.")))
    kinds = [type(event) for event in agent.events if not isinstance(event, TextPiece)]
    assert kinds == [AnswerFinished, CallStarted, CallOutput, CallFinished, AnswerFinished]
    assert "".join(event.text for event in agent.events if isinstance(event, TextPiece)) == "I look.Done."
    assert [event.text for event in agent.events if isinstance(event, CallOutput)] == ["seen\n"]


async def test_coroutine_functions_receive_events(chat_agent: Runner) -> None:
    seen: list[AgentEvent] = []

    async def take(event: AgentEvent) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(event)

    await chat_agent(one_by_one(Call("run_command", {"command": "echo x"}), Say("Done.")), on_event=take)
    assert any(isinstance(event, CallOutput) for event in seen)


# ------------------------------------------------------------------------------------------------------------ misbehaving models

WRONG: Mapping[str, tuple[Step | list[Step], str]] = {
    "unknown tool": (Call("delete_host", {"path": "/"}), "There is no tool 'delete_host'"),
    "missing argument": (Call("run_code", {}), "`code` is missing"),
    "wrong type": (Call("run_code", {"code": ["print(1)"]}), "`code` must be a text"),
    "large arguments": (Call("run_code", {"code": "#" * (2 * MIB)}), "at most 1,048,576 are allowed"),
    "broken JSON": (Call("run_code", "{\"code\": \"open('/tmp/ran', 'w')"), "not valid JSON"),
    "not an object": (Call("run_code", '["print(1)"]'), "must be a JSON object"),
    "cut off": ([Call("run_code", {"code": "open('/tmp/ran', 'w')"}), Truncate()], "cut off"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_wrong_call_is_answered_and_not_run(agent: Runner, case: str) -> None:
    wrong, message = WRONG[case]
    outcome = await agent(one_by_one(wrong, Say("I see.")))
    assert (outcome.text, outcome.stop, agent.refused) == ("I see.", "answered", [])
    (result,) = agent.conversations[-1].results
    assert message in result.text
    assert result.is_error == (agent.protocol == "messages")
    assert agent.tools.sandbox_id is None  # nothing was run, so that no sandbox was needed


async def test_sandbox_that_died_is_answered_and_replaced(agent: Runner, connections: AsyncClient) -> None:
    def script(conversation: Conversation) -> Step:
        return Say(conversation.results[0].text) if conversation.results else Call("run_command", {"command": "echo alive"})

    assert (await agent(script)).text == "alive"
    await connections.sandboxes.kill(agent.tools.sandbox_id or "")
    assert "The sandbox is gone" in (await agent(script)).text
    assert (await agent(script)).text == "alive"


async def test_broken_stream_is_repeated(agent: Runner) -> None:
    cut: list[Step] = [Say("Half of this text arrives, and then the connection breaks."), Cut()]
    outcome = await agent(one_by_one(cut, Say("Whole.")))
    assert (outcome.text, outcome.turns) == ("Whole.", 2)
    assert [event.turn for event in agent.events if isinstance(event, AnswerDiscarded)] == [1]


async def test_stream_that_always_breaks_is_an_error(agent: Runner, tmp_path: Path) -> None:
    cut: list[Step] = [Say("Half of this text arrives, and then the connection breaks."), Cut()]
    with pytest.raises(UnavailableError, match="ended before it was complete"):
        await agent(lambda _: cut, transcript=tmp_path / "t")
    assert len(agent.conversations) == 3
    assert read_transcript(tmp_path / "t")[-1]["type"] == "error"


@pytest.mark.parametrize("status", [429, 500])
async def test_failure_of_the_service_reaches_the_caller(agent: Runner, status: int) -> None:
    with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
        await agent(lambda _: Fail(status))


async def test_short_failure_of_the_service_is_repeated_by_the_client(agent: Runner) -> None:
    assert (await agent(one_by_one(Fail(500), Say("Well.")))).text == "Well."


async def test_truncated_text_ends_the_run(agent: Runner) -> None:
    outcome = await agent(lambda _: [Say("As I was say"), Truncate()])
    assert (outcome.text, outcome.stop, outcome.ok) == ("As I was say", "truncated", False)


# -------------------------------------------------------------------------------------------------------------------------- limits

ENDLESS = Call("run_command", {"command": "echo again"})
LIMITS: Mapping[str, tuple[AgentLimits, int]] = {
    "turns": (AgentLimits(turns=3), 2),
    "calls": (AgentLimits(calls=2), 2),
    "tokens": (AgentLimits(tokens=300), 2),
}


@pytest.mark.parametrize("limit", LIMITS)
async def test_endless_calls_end_at_the_limit(agent: Runner, limit: str) -> None:
    limits, calls = LIMITS[limit]
    outcome = await agent(lambda _: ENDLESS, limits=limits)
    assert (outcome.stop, outcome.turns, outcome.calls) == (limit, 3, calls)


async def test_conversation_that_ended_at_a_limit_can_be_continued(agent: Runner) -> None:
    outcome = await agent(lambda _: [Call("run_command", {"command": "echo 1"}), ENDLESS], limits=AgentLimits(turns=1))
    continued = await agent(lambda _: Say("Well."), "Go on.", messages=outcome.messages)
    assert (continued.text, agent.refused) == ("Well.", [])
    assert all("The limit of turns was reached" in text for text in agent.results())
    assert agent.conversations[-1].prompts == ("Go.", "Go on.")


async def test_hanging_model_ends_at_the_time_limit(agent: Runner) -> None:
    outcome = await agent(lambda _: Hang(), limits=AgentLimits(time_s=0.5))
    assert (outcome.stop, outcome.turns, outcome.text) == ("time", 1, "")


async def test_program_is_interrupted_at_the_time_limit(agent: Runner) -> None:
    await agent.tools.sandbox()
    calls: list[Step] = [Call("run_command", {"command": "echo quick"}), Call("run_command", {"command": "sleep 1000", "timeout": 1000})]
    outcome = await agent(lambda _: calls, limits=AgentLimits(time_s=1.5))
    assert (outcome.stop, outcome.calls) == ("time", 2)
    await agent(lambda _: Say("Well."), messages=outcome.messages)
    assert agent.results()[0] == "quick"
    assert "The limit of time was reached" in agent.results()[1]
    sandbox = await agent.tools.sandbox()
    for process in await sandbox.commands.list():
        await (await sandbox.commands.connect(process.id)).wait()


async def test_cost_limit_ends_the_run(tools: AsyncSandboxTools) -> None:
    with scripted_model(lambda _: ENDLESS) as endpoint:
        async with anthropic.AsyncAnthropic(base_url=endpoint.address, api_key="k") as client:
            with pytest.warns(DeprecationWarning, match="claude-opus-4-5"):
                outcome = await run_async(client, MODEL, "Go.", tools=tools, limits=AgentLimits(cost_usd=0.001))
    assert outcome.stop == "cost"
    assert outcome.cost_usd == outcome.turns * Decimal("0.00075")  # 100 tokens of input at 5 USD and 10 of output at 25 USD a million
    assert outcome.turns == 2


async def test_cost_limit_with_unknown_price_is_an_error_before_the_first_request(agent: Runner) -> None:
    with pytest.raises(InvalidRequestError, match="price of the model 'scripted' is not known"):
        await agent(lambda _: Say("Well."), limits=AgentLimits(cost_usd=1))
    assert agent.conversations == []


async def test_client_of_another_package_is_refused(tools: AsyncSandboxTools) -> None:
    with pytest.raises(InvalidRequestError, match="not a client of"):
        await run_async(object(), "m", "Go.", tools=tools)


# ----------------------------------------------------------------------------------------------------------------- other features


async def test_transcript_grows_with_the_run(agent: Runner, connections: AsyncClient, tmp_path: Path) -> None:
    path = tmp_path / "transcript.jsonl"
    seen: list[list[str]] = []

    def script(conversation: Conversation) -> Step:
        seen.append([entry["type"] for entry in read_transcript(path)])
        return Say("Done.") if conversation.results else Call("run_command", {"command": "echo x"})

    await agent(script, transcript=path)
    assert seen == [["start"], ["start", "answer", "result"]]
    start, answer, result, last, end = read_transcript(path)
    assert (start["prompt"], start["model"], start["tools"][0]) == ("Go.", "scripted", "run_code")
    assert [(call["name"], json.loads(call["arguments"])) for call in answer["calls"]] == [("run_command", {"command": "echo x"})]
    assert (result["content"], result["is_error"], result["sandbox"]) == ([{"type": "text", "text": "x"}], False, agent.tools.sandbox_id)
    assert result["call"] == answer["calls"][0]["id"]
    (execution,) = await connections.executions.list(sandbox=agent.tools.sandbox_id)
    assert result["execution"] == execution.id
    assert (last["text"], end["stop"], end["turns"], end["usage"]["input_tokens"]) == ("Done.", "answered", 2, 200)
    assert path.stat().st_mode & 0o777 == 0o600


async def test_options_reach_the_request(agent: Runner) -> None:
    await agent(lambda _: Say("Well."), options={"extra_body": {"marker": 5}}, max_output_tokens=77)
    body = agent.conversations[0].body
    assert body["marker"] == 5
    assert 77 in {body.get("max_tokens"), body.get("max_completion_tokens"), body.get("max_output_tokens")}


async def test_sandbox_of_a_run_ends_with_it(connections: AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_URL", url)
    monkeypatch.setattr("sandlot.agents.loop.AsyncSandboxTools", lambda **_: AsyncSandboxTools(template="base"))
    with scripted_model(one_by_one(Call("run_command", {"command": "echo x"}), Say("Done."))) as endpoint:
        async with client_of(endpoint, "chat") as client:
            outcome = await run_async(client, "scripted", "Go.")
    assert outcome.sandbox_id is not None
    assert await connections.sandboxes.list() == []


SYNCHRONOUS: Mapping[str, Callable[[Endpoint], Any]] = {
    "chat": lambda endpoint: openai.OpenAI(base_url=endpoint.openai_url, api_key="k"),
    "messages": lambda endpoint: anthropic.Anthropic(base_url=endpoint.address, api_key="k"),
    "responses": lambda endpoint: openai.OpenAI(base_url=endpoint.openai_url, api_key="k"),
}


@PROTOCOLS
async def test_synchronous_program_runs_an_agent(protocol: str, url: str) -> None:
    def work() -> tuple[AgentRun, list[str]]:
        pieces: list[str] = []

        def note(event: AgentEvent) -> None:
            if isinstance(event, TextPiece):
                pieces.append(event.text)

        def script(conversation: Conversation) -> Step:
            return Say(f"It is {conversation.results[0].text}.") if conversation.results else Call("run_code", {"code": "print(6 * 7)"})

        with scripted_model(script) as endpoint, SYNCHRONOUS[protocol](endpoint) as client, Client(url) as connections:
            with SandboxTools(template="base", client=connections) as tools:
                outcome = run(client, "scripted", "Go.", tools=tools, api=api_of(protocol), on_event=note)
                assert [info.id for info in connections.sandboxes.list()] == [outcome.sandbox_id]
            return outcome, pieces

    outcome, pieces = await anyio.to_thread.run_sync(work)
    assert (outcome.text, "".join(pieces)) == ("It is 42.", "It is 42.")


@PROTOCOLS
async def test_hanging_model_ends_a_synchronous_run(protocol: str, url: str) -> None:
    def work() -> AgentRun:
        with (
            scripted_model(lambda _: Hang()) as endpoint,
            SYNCHRONOUS[protocol](endpoint) as client,
            Client(url) as connections,
            SandboxTools(template="base", client=connections) as tools,
        ):
            return run(client, "scripted", "Go.", tools=tools, api=api_of(protocol), limits=AgentLimits(time_s=0.5))

    assert (await anyio.to_thread.run_sync(work)).stop == "time"
