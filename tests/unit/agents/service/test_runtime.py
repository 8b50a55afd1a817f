"""Runs of agents: a model behind the packages of its vendor, tools in sandboxes, events that are stored first, and every way in which a run ends."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sandlot.agents.service import conversation
from sandlot.agents.service.limits import MAX_MESSAGE_BYTES, HostedRunLimits
from sandlot.agents.service.models import ModelKind
from sandlot.agents.service.sandbox import SESSION
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.agents import AgentChange, AgentConfig, AgentEventRecord, SessionEnvironment, SessionStatus
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, InvalidRequestError, LimitError, NotFoundError, UnavailableError
from sandlot.model.records import KeyChange
from sandlot.model.sandboxes import CreateSandboxParams
from tests.support.clock import ManualClock
from tests.support.scripted_model.steps import MIB, Call, Conversation, Cut, Fail, Hang, Say, Step, Truncate
from tests.support.service import Bench, bench
from tests.support.until import until
from tests.unit.agents.service.conftest import MakeWorld, World, answer_results, in_turn

COMPUTE = Call("run_code", {"code": "x = 6 * 7\nprint(x)"})
MANY = HostedRunLimits(runs_per_key=10)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WRITE = Call("run_code", {"code": f"import base64\nopen('/tmp/a.png', 'wb').write(base64.b64decode('{PNG}'))"})
DRAW = (WRITE, Call("read_file", {"path": "/tmp/a.png"}))
FOREVER = Call("run_command", {"command": "sleep 1000"})


def kinds(events: list[AgentEventRecord]) -> list[str]:
    return [each.type.removeprefix("session.").removeprefix("agent.") for each in events]


def texts(events: list[AgentEventRecord], kind: str) -> list[str]:
    return [block["text"] for each in events if each.type == kind for block in each.data["content"]]


def stop_reason(events: list[AgentEventRecord]) -> str:
    assert events[-1].type == "session.status_idle"
    return str(events[-1].data["stop_reason"]["type"])


def error(events: list[AgentEventRecord]) -> tuple[str, str]:
    (found,) = [each.data["error"] for each in events if each.type == "session.error"]
    assert found["retry_status"] == {"type": "exhausted"}
    return found["type"], found["message"]


async def new_key(at: Bench, name: str = "alice") -> Principal:
    """Create a key, and return its principal."""
    _, secret = await at.service.api_keys.create(name)
    principal = at.service.api_keys.verify(secret)
    assert principal is not None
    return principal


async def test_run_calls_the_tools_of_a_sandbox_until_the_model_answers(make_world: MakeWorld, kind: ModelKind, at: Bench) -> None:
    world = make_world(answer_results(COMPUTE), kind)
    session = await world.session()
    events = await world.run(session)
    assert kinds(events) == ["user.message", "status_running", "tool_use", "tool_result", "message", "status_idle"]
    assert events[2].data["input"] == COMPUTE.arguments
    assert events[2].data["tool_use_id"] == events[3].data["tool_use_id"]
    assert events[3].data["is_error"] is False
    assert texts(events, "agent.message")[0].startswith("The answer is 42")
    ended = await at.node.agents.get_session(OPERATOR, session)
    assert (ended.status, ended.stop_reason, ended.usage.model_requests, ended.usage.tool_calls) == (SessionStatus.IDLE, "end_turn", 2, 1)
    assert ended.usage.input_tokens > 0
    assert ended.usage.cost_usd == pytest.approx((ended.usage.input_tokens * 1 + ended.usage.output_tokens * 5) / 1e6)
    first = world.endpoint.conversations[0]
    assert (first.model, first.system, first.prompts) == ("upstream", "Be short.", ("What is 6 * 7?",))
    assert "run_code" in first.tools


async def test_next_message_continues_the_conversation_and_the_sandbox(make_world: MakeWorld, kind: ModelKind, at: Bench) -> None:
    world = make_world(answer_results(COMPUTE, Call("run_code", {"code": "print(x + 1)"})), kind)
    session = await world.session()
    await world.run(session)
    sandbox = (await at.node.agents.get_session(OPERATOR, session)).sandbox
    assert sandbox is not None
    events = await world.run(session, "And again?")
    assert (await at.node.agents.get_session(OPERATOR, session)).sandbox == sandbox
    assert world.endpoint.conversations[-1].prompts == ("What is 6 * 7?", "And again?")
    assert stop_reason(events) == "end_turn"
    assert world.endpoint.refused == []


async def test_sandbox_is_created_with_the_first_call_for_the_session(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(in_turn(Say("Hello."), COMPUTE, Say("Done.")))
    session = await world.session()
    await world.run(session, "Hi")
    assert at.sandboxes.list(OPERATOR) == []
    await world.run(session, "Compute")
    (sandbox,) = at.sandboxes.list(OPERATOR)
    assert sandbox.spec.metadata == {"sandlot.agent_session": session}


async def test_agent_without_tools_is_offered_none(make_world: MakeWorld) -> None:
    world = make_world(in_turn(COMPUTE, Say("I have no tools.")))
    events = await world.run(await world.session(tools=()))
    assert world.endpoint.conversations[0].tools == ()
    assert [each.data["is_error"] for each in events if each.type == "agent.tool_result"] == [True]
    assert stop_reason(events) == "end_turn"


@pytest.mark.parametrize(
    "call, told",
    [
        (Call("fly", {}), "There is no tool 'fly'"),
        (Call("run_code", {"code": 7}), "code"),
        (Call("run_code", {"code": "x" * (2 * MIB)}), "262,144 are allowed"),
        (Call("n" * 5000, {}), "There is no tool"),
    ],
    ids=["unknown", "type", "large", "name"],
)
async def test_wrong_calls_have_results_that_the_model_can_act_on(make_world: MakeWorld, kind: ModelKind, call: Call, told: str) -> None:
    world = make_world(in_turn(call, Say("Sorry.")), kind)
    events = await world.run(await world.session())
    assert kinds(events) == ["user.message", "status_running", "tool_use", "tool_result", "message", "status_idle"]
    assert told in texts(events, "agent.tool_result")[0]
    assert events[3].data["is_error"] is True
    assert all(len(str(each.data)) < 2 * MAX_MESSAGE_BYTES for each in events)
    assert told in world.endpoint.conversations[-1].results[0].text


@pytest.mark.parametrize("kind", [ModelKind.OPENAI_CHAT, ModelKind.OPENAI_RESPONSES])
async def test_broken_arguments_have_a_result_that_the_model_can_act_on(make_world: MakeWorld, kind: ModelKind) -> None:
    world = make_world(in_turn(Call("run_code", '{"code": "x'), Say("Sorry.")), kind)
    events = await world.run(await world.session())
    assert "JSON" in texts(events, "agent.tool_result")[0]
    assert stop_reason(events) == "end_turn"


async def test_repeated_ids_of_calls_are_replaced(make_world: MakeWorld, kind: ModelKind) -> None:
    world = make_world(in_turn(COMPUTE, Say("One.")), kind)
    session = await world.session()
    await world.run(session)
    world = make_world(in_turn(COMPUTE, Say("Two.")), kind)  # another endpoint, which begins to count its calls again
    assert stop_reason(await world.run(session)) == "end_turn"
    ids = [each.data["tool_use_id"] for each in await world.events(session) if each.type == "agent.tool_use"]
    assert len(set(ids)) == len(ids) == 2
    assert world.endpoint.refused == []


@pytest.mark.parametrize(
    "step, kind_, told",
    [
        (Fail(429, "Slow down."), "model_rate_limited_error", "status 429"),
        (Fail(500), "model_overloaded_error", "status 500"),
        (Fail(400, "Bad."), "model_request_failed_error", "status 400"),
        ([Say("Half of this."), Cut()], "model_request_failed_error", "failed"),
    ],
    ids=["429", "500", "400", "cut"],
)
async def test_failures_of_the_endpoint_end_the_run_with_their_cause(
    make_world: MakeWorld, kind: ModelKind, step: Step | list[Step], kind_: str, told: str
) -> None:
    world = make_world(lambda _: step, kind)
    session = await world.session()
    events = await world.run(session)
    name, message = error(events)
    assert (name, stop_reason(events)) == (kind_, "retries_exhausted")
    assert told in message
    assert "key-of-the-model" not in message
    assert (await world.at.node.agents.get_session(OPERATOR, session)).status is SessionStatus.IDLE


async def test_endpoint_that_hangs_ends_the_run(make_world: MakeWorld, kind: ModelKind) -> None:
    world = make_world(lambda _: Hang(), kind, timeout=0.05)
    events = await world.run(await world.session())
    assert error(events)[0] == "model_request_failed_error"


async def test_response_that_is_cut_off_at_its_maximum_ends_the_run(make_world: MakeWorld, kind: ModelKind) -> None:
    world = make_world(lambda _: [Say("One, two,"), Truncate()], kind)
    events = await world.run(await world.session())
    assert texts(events, "agent.message") == ["One, two,"]
    assert "8192 tokens" in error(events)[1]
    assert stop_reason(events) == "budget_reached"


@pytest.mark.parametrize(
    "limits, told",
    [
        (HostedRunLimits(model_requests=3), "3 requests"),
        (HostedRunLimits(tool_calls=3), "3 times"),
        (HostedRunLimits(session_tokens=1), "1 are allowed"),
        (HostedRunLimits(session_cost_usd=0.000001), "US dollars"),
    ],
    ids=["requests", "calls", "tokens", "cost"],
)
async def test_endless_calls_end_at_each_limit(make_world: MakeWorld, limits: HostedRunLimits, told: str) -> None:
    world = make_world(lambda _: COMPUTE, limits=limits)
    session = await world.session()
    events = await world.run(session)
    assert told in error(events)[1]
    assert stop_reason(events) == "budget_reached"
    uses = [each.data["tool_use_id"] for each in events if each.type == "agent.tool_use"]
    assert [each.data["tool_use_id"] for each in events if each.type == "agent.tool_result"] == uses
    again = await world.run(session, "Go on")
    assert stop_reason(again) == "budget_reached"
    assert world.endpoint.refused == []


async def test_run_ends_at_its_time_limit(make_world: MakeWorld) -> None:
    world = make_world(lambda _: FOREVER, limits=HostedRunLimits(run_s=0.2))
    events = await world.run(await world.session())
    assert "0.2 seconds" in error(events)[1]
    assert kinds(events)[-3:] == ["tool_result", "error", "status_idle"]


async def test_interrupt_ends_a_call_and_the_next_message_goes_on(make_world: MakeWorld, kind: ModelKind, at: Bench) -> None:
    world = make_world(in_turn(FOREVER, COMPUTE, Say("Done.")), kind)
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Wait")
    await world.until(session, "agent.tool_use")
    await until(lambda: bool(at.sandboxes.list(OPERATOR)))
    assert await world.runtime.interrupt(OPERATOR, session)
    events = await world.events(session)
    assert kinds(events) == ["user.message", "status_running", "tool_use", "user.interrupt", "tool_result", "status_idle"]
    assert "interrupted" in texts(events, "agent.tool_result")[0]
    assert not await world.runtime.interrupt(OPERATOR, session)
    events = await world.run(session, "Go on")
    assert stop_reason(events) == "end_turn"
    assert world.endpoint.refused == []


async def test_interrupt_ends_a_request_to_the_model(make_world: MakeWorld, kind: ModelKind) -> None:
    script = in_turn(Hang(), Say("Hello."))
    world = make_world(script, kind)
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Hi")
    await until(lambda: bool(world.endpoint.conversations))
    assert world.runtime.is_running  # keeps a local service from ending because it has no sandboxes
    assert await world.runtime.interrupt(OPERATOR, session)
    await until(lambda: not world.runtime.is_running)
    assert kinds(await world.events(session)) == ["user.message", "status_running", "user.interrupt", "status_idle"]
    assert stop_reason(await world.run(session, "Again")) == "end_turn"


async def test_two_messages_at_once_are_a_conflict(make_world: MakeWorld) -> None:
    world = make_world(lambda _: Hang())
    session = await world.session()
    results = await asyncio.gather(*(world.runtime.send(OPERATOR, session, str(each)) for each in range(3)), return_exceptions=True)
    assert sum(isinstance(each, ConflictError) for each in results) == 2
    await world.runtime.interrupt(OPERATOR, session)


async def test_runs_of_a_key_and_of_the_node_are_limited(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda _: Hang(), limits=HostedRunLimits(runs_per_key=2, runs=3))
    alice = await new_key(at)
    sessions = [await world.session() for _ in range(3)]
    theirs = [await world.session(alice) for _ in range(2)]
    for session in sessions[:2]:
        await world.runtime.send(OPERATOR, session, "Hi")
    with pytest.raises(LimitError):
        await world.runtime.send(OPERATOR, sessions[2], "Hi")
    await world.runtime.send(alice, theirs[0], "Hi")
    with pytest.raises(UnavailableError) as busy:
        await world.runtime.send(alice, theirs[1], "Hi")
    assert busy.value.code is ErrorCode.BUSY
    assert (await world.at.node.agents.get_session(OPERATOR, sessions[2])).status is SessionStatus.IDLE
    await world.runtime.interrupt(OPERATOR, sessions[0])
    await world.runtime.send(OPERATOR, sessions[2], "Hi")


async def test_ten_sessions_at_once_have_a_sandbox_each(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda conversation: Say(conversation.results[-1].text) if conversation.results else echo(conversation), limits=MANY)
    sessions = [await world.session() for _ in range(10)]
    runs = await asyncio.gather(*(world.run(session, f"number {number}") for number, session in enumerate(sessions)))
    for number, events in enumerate(runs):
        assert texts(events, "agent.message")[0].strip().startswith(f"number {number}")
        assert stop_reason(events) == "end_turn"
    assert len(at.sandboxes.list(OPERATOR)) == 10


def echo(conversation: Conversation) -> Step:
    """Print the prompt in the sandbox."""
    return Call("run_code", {"code": f"print({conversation.prompts[-1]!r})"})


async def test_another_key_sees_and_sends_nothing(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(in_turn(Say("Hello.")))
    alice, bob = await new_key(at, "alice"), await new_key(at, "bob")
    session = await world.session(alice)
    for work in (world.runtime.send(bob, session, "Hi"), world.runtime.interrupt(bob, session), world.runtime.delete_session(bob, session)):
        with pytest.raises(NotFoundError):
            await work
    with pytest.raises(ForbiddenError):
        await world.runtime.send(OPERATOR, session, "Hi")
    assert stop_reason(await world.run(session, "Hi", alice)) == "end_turn"


async def test_ended_sandbox_is_told_and_the_next_call_gets_another(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(answer_results(COMPUTE))
    session = await world.session()
    await world.run(session)
    (sandbox,) = at.sandboxes.list(OPERATOR)
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    calls = iter([Call("run_code", {"code": "print(x)"}), COMPUTE, Say("Done.")])
    other = make_world(lambda _: next(calls))
    begun = await other.runtime.send(OPERATOR, session, "And x?")
    await other.runtime.wait(begun.id)
    events = await world.events(session, after=6)
    assert [each.data["is_error"] for each in events if each.type == "agent.tool_result"] == [True, False]
    assert "gone" in texts(events, "agent.tool_result")[0]
    after = (await at.node.agents.get_session(OPERATOR, session)).sandbox
    assert after not in {None, sandbox.id}


async def test_delete_ends_the_run_and_the_sandbox(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda _: FOREVER)
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Wait")
    await world.until(session, "agent.tool_use")
    await world.runtime.delete_session(OPERATOR, session)
    assert at.sandboxes.list(OPERATOR) == []
    with pytest.raises(NotFoundError):
        await at.node.agents.get_session(OPERATOR, session)


async def test_archive_ends_the_run_and_the_sandbox_and_keeps_the_events(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda _: FOREVER)
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Wait")
    await world.until(session, "agent.tool_use")
    archived = await world.runtime.archive_session(OPERATOR, session)
    assert (archived.status, archived.node) == (SessionStatus.TERMINATED, None)
    assert kinds(await world.events(session))[-3:] == ["tool_result", "status_idle", "status_terminated"]
    assert at.sandboxes.list(OPERATOR) == []
    assert await world.runtime.archive_session(OPERATOR, session) == archived
    with pytest.raises(ConflictError, match="archived"):
        await world.runtime.send(OPERATOR, session, "Go on")
    assert not world.runtime.is_running


async def test_sessions_of_an_archived_agent_continue(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(answer_results(COMPUTE))
    session = await world.session()
    await world.run(session)
    agent = (await at.node.agents.get_session(OPERATOR, session)).agent
    await at.node.agents.archive(OPERATOR, agent)
    assert stop_reason(await world.run(session, "And again?")) == "end_turn"
    with pytest.raises(ConflictError, match="archived"):
        await world.runtime.create_session(OPERATOR, agent, SessionEnvironment("base"))


async def test_deletion_of_an_agent_archives_its_sessions(make_world: MakeWorld, at: Bench) -> None:
    alice = await new_key(at)
    world = make_world(in_turn(COMPUTE, Say("Done."), COMPUTE, Say("Done."), FOREVER))
    other, used = await world.session(alice), await world.session(alice)
    for session in (other, used):
        await world.run(session, principal=alice)
    agent = (await at.node.agents.get_session(alice, used)).agent
    running = (await world.runtime.create_session(alice, agent, SessionEnvironment("base"))).id
    unused = (await world.runtime.create_session(OPERATOR, agent, SessionEnvironment("base"))).id
    await world.runtime.send(alice, running, "Wait")
    await world.until(running, "agent.tool_use")

    await world.runtime.delete(alice, agent)
    assert kinds(await world.events(running, principal=alice))[-3:] == ["tool_result", "status_idle", "status_terminated"]
    for session in (used, running, unused):
        assert (await at.node.agents.get_session(OPERATOR, session)).status is SessionStatus.TERMINATED
    left = await at.node.agents.get_session(alice, other)
    assert [each.id for each in at.sandboxes.list(OPERATOR)] == [left.sandbox]
    assert not world.runtime.is_running
    with pytest.raises(NotFoundError):
        await world.runtime.delete(alice, agent)
    with pytest.raises(ConflictError, match="archived"):
        await world.runtime.send(alice, used, "Go on")
    with pytest.raises(NotFoundError):  # an agent of another key
        await world.runtime.delete(await new_key(at, "bob"), left.agent)


async def test_sessions_without_events_are_deleted_after_their_time(make_world: MakeWorld, tmp_path: Path) -> None:
    clock = ManualClock()
    async with bench(tmp_path / "clocked", clock=clock) as at:
        world = make_world(answer_results(*DRAW), limits=HostedRunLimits(session_keep_s=100))
        world.at = at
        world.runtime = world.start()
        alice = await new_key(at)
        await world.run(await world.session(alice), principal=alice)
        used, archived = [await world.session() for _ in range(2)]
        for session in (used, archived):
            await world.run(session)
        await world.runtime.archive_session(OPERATOR, archived)
        clock.advance(60)
        await world.run(used, "Again")
        assert await world.runtime.remove_unused() == 0
        clock.advance(60)
        assert await world.runtime.remove_unused() == 2
        (left,) = (await at.node.agents.list_sessions(OPERATOR)).items
        assert left.id == used
        assert [each.id for each in at.sandboxes.list(OPERATOR)] == [left.sandbox]
        assert len((await at.node.file_store.page(OPERATOR)).items) == 1
        await world.runtime.delete_session(OPERATOR, left.id)


async def test_service_deletes_unused_sessions_while_it_runs(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda _: Say("Hi."), limits=HostedRunLimits(session_keep_s=0))
    await world.session()

    async def is_empty() -> bool:
        return not (await at.node.agents.list_sessions(OPERATOR)).items

    await world.runtime.start()
    await until(is_empty)


async def test_stopped_run_is_ended_by_the_next_service(make_world: MakeWorld, kind: ModelKind, at: Bench) -> None:
    world = make_world(in_turn([COMPUTE, FOREVER], COMPUTE, Say("Done.")), kind)
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Wait")
    await world.until(session, "agent.tool_result")
    await world.runtime.aclose()
    left = await at.node.agents.get_session(OPERATOR, session)
    assert left.status is SessionStatus.RUNNING
    world.runtime = world.start()
    await world.runtime.start()
    events = await world.events(session)
    assert kinds(events)[-4:] == ["tool_result", "tool_result", "error", "status_idle"]
    assert "restarted" in texts(events, "agent.tool_result")[-1]
    assert [each.sequence for each in events] == list(range(1, len(events) + 1))
    ended = await at.node.agents.get_session(OPERATOR, session)
    assert (ended.status, ended.sandbox) == (SessionStatus.IDLE, left.sandbox)
    assert stop_reason(await world.run(session, "Go on")) == "end_turn"
    assert [each.text.strip()[:2] for each in world.endpoint.conversations[-1].results[:1]] == ["42"]
    assert world.endpoint.refused == []


async def test_sandbox_belongs_to_the_session_before_its_first_use(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda _: FOREVER)
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Wait")

    async def has_sandbox() -> bool:
        return (await at.node.agents.get_session(OPERATOR, session)).sandbox is not None

    await until(has_sandbox)
    assert kinds(await world.events(session)) == ["user.message", "status_running", "tool_use"]


async def test_sandbox_that_a_killed_service_did_not_name_is_found(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(answer_results(COMPUTE))
    session = await world.session()
    await at.node.agents.begin_run(OPERATOR, session, [conversation.user_message("Hi")[0]], messages=[conversation.user_message("Hi")[1]])
    lost = await at.node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", metadata={SESSION: session}))
    await world.runtime.start()
    assert (await at.node.agents.get_session(OPERATOR, session)).sandbox == lost.id
    assert stop_reason(await world.run(session, "Go on")) == "end_turn"
    assert [each.id for each in at.sandboxes.list(OPERATOR)] == [lost.id]


async def test_lost_run_is_left_for_the_next_start_if_the_extra_is_missing(
    make_world: MakeWorld, at: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(lambda _: Hang())
    session = await world.session()
    await world.runtime.send(OPERATOR, session, "Wait")
    await world.runtime.aclose()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, conversation.__name__, None)
        patch.delattr("sandlot.agents.service.conversation")
        await world.start().start()
    assert (await at.node.agents.get_session(OPERATOR, session)).status is SessionStatus.RUNNING
    assert "extra `agents`" in capsys.readouterr().out
    await world.start().start()
    assert (await at.node.agents.get_session(OPERATOR, session)).status is SessionStatus.IDLE


async def test_stored_conversation_that_cannot_be_read_does_not_keep_the_service_from_starting(make_world: MakeWorld, at: Bench) -> None:
    world = make_world(lambda _: Say("Hello."))
    broken, sound = await world.session(), await world.session()
    for session, message in ((broken, "{"), (sound, conversation.user_message("Hi")[1])):
        await at.node.agents.begin_run(OPERATOR, session, [], messages=[message])
    await world.runtime.start()
    assert (await at.node.agents.get_session(OPERATOR, sound)).status is SessionStatus.IDLE


@pytest.mark.parametrize("step, during", [(FOREVER, "agent.tool_use"), (Hang(), "session.status_running")], ids=["tool", "model"])
@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_end_of_a_key_ends_its_run(make_world: MakeWorld, at: Bench, step: Step, during: str, end: str) -> None:
    world = make_world(lambda _: step)
    alice = await new_key(at)
    session = await world.session(alice)
    begun = await world.runtime.send(alice, session, "Wait")
    await world.until(session, during)
    if end == "expired":
        await at.node.keys.update(OPERATOR, alice.owner, KeyChange(expires_at=datetime(2000, 1, 1, tzinfo=UTC)))
    else:
        await at.node.keys.revoke(OPERATOR, alice.owner)
    await world.runtime.wait(begun.id)
    events = await world.events(session)
    (failure,) = [each.data["error"] for each in events if each.type == "session.error"]
    assert end in failure["message"]
    assert failure["retry_status"] == {"type": "terminal"}
    assert (await at.node.agents.get_session(OPERATOR, session)).status is SessionStatus.IDLE
    # A request that was admitted just before the end of the key:
    events = await world.run(session, "Go on", alice)
    assert kinds(events) == ["user.message", "status_running", "error", "status_idle"]


async def test_images_become_files_of_the_session(make_world: MakeWorld, kind: ModelKind, at: Bench) -> None:
    world = make_world(answer_results(*DRAW), kind)
    session = await world.session()
    events = await world.run(session)
    (image,) = [block for each in events if each.type == "agent.tool_result" for block in each.data["content"] if block["type"] == "image"]
    content = b"".join([chunk async for chunk in await at.node.file_store.read(OPERATOR, image["source"]["file_id"])])
    assert content.startswith(b"\x89PNG")
    await world.runtime.delete_session(OPERATOR, session)
    assert (await at.node.file_store.page(OPERATOR)).items == []


async def test_models_and_tools_that_are_not_offered_are_refused(make_world: MakeWorld) -> None:
    world = make_world(lambda _: Say("x"))
    for work in (
        world.runtime.create(OPERATOR, AgentConfig("A", "small")),
        world.runtime.create(OPERATOR, AgentConfig("A", "large", tools=({"type": "mcp", "server": "github"},))),
        world.runtime.create(OPERATOR, AgentConfig("A", "large", tools=({"type": "web_search"},))),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            await work
        assert refused.value.hint
    agent = await world.runtime.create(OPERATOR, AgentConfig("A", "large", tools=({"type": "agent_toolset_20260401"},)))
    with pytest.raises(InvalidRequestError) as unknown:
        await world.runtime.update(OPERATOR, agent.id, AgentChange(model="small"))
    assert unknown.value.code is ErrorCode.MODEL_NOT_CONFIGURED
    assert "large" in unknown.value.hint
    with pytest.raises(NotFoundError):
        await world.runtime.create_session(OPERATOR, agent.id, SessionEnvironment("nowhere"))


@pytest.mark.parametrize("text", ["", "x" * (MAX_MESSAGE_BYTES + 1), "a\0b"])
async def test_messages_out_of_range_are_refused(make_world: MakeWorld, text: str) -> None:
    world = make_world(lambda _: Say("x"))
    session = await world.session()
    with pytest.raises(InvalidRequestError):
        await world.runtime.send(OPERATOR, session, text)
    assert await world.events(session) == []


async def test_event_is_stored_before_the_next_step(make_world: MakeWorld) -> None:
    seen: list[list[str]] = []
    sessions: list[str] = []
    loop = asyncio.get_running_loop()
    world: World

    def think(conversation: Conversation) -> Step:
        seen.append(kinds(asyncio.run_coroutine_threadsafe(world.events(sessions[0]), loop).result()))
        return COMPUTE if not conversation.results else Say("Done.")

    world = make_world(think)
    sessions.append(await world.session())
    await world.run(sessions[0])
    assert seen == [["user.message", "status_running"], ["user.message", "status_running", "tool_use", "tool_result"]]
