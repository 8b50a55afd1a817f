"""MCP servers of the operator: their file, their tools in runs, their failures, and credentials that stay in the service."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.agents.service.limits import HostedRunLimits
from sandlot.agents.service.tool_servers import MAX_RESPONSE_BYTES, ToolServerEntry, load_tool_servers
from sandlot.model.access import OPERATOR
from sandlot.model.agents import AgentChange, AgentEventRecord
from sandlot.model.errors import InvalidRequestError
from sandlot.toolset.output import MAX_OUTPUT_CHARS
from tests.support.scripted_model.steps import Call, Say, Step
from tests.support.service import Bench
from tests.support.tool_server import Flood, ToolServer, tool_server
from tests.unit.agents.service.conftest import MakeWorld, World, answer_results, in_turn

TOKEN = f"token-{secrets.token_hex(8)}"
CALCULATOR = {"type": "mcp", "server": "calculator"}
BOTH = ({"type": "mcp", "server": "code-exec"}, CALCULATOR)


@pytest.fixture(scope="module")
def server() -> Iterator[ToolServer]:
    with tool_server(TOKEN) as running:
        yield running


def entry(url: str, *, token: str = TOKEN, timeout: float = 60) -> ToolServerEntry:
    return ToolServerEntry("calculator", url, {"Authorization": f"Bearer {token}"}, timeout)


def results(events: list[AgentEventRecord]) -> list[str]:
    return ["\n".join(block.get("text", block["type"]) for block in each.data["content"]) for each in events if each.type == "agent.tool_result"]


def error(events: list[AgentEventRecord]) -> dict[str, str]:
    (found,) = [each.data["error"] for each in events if each.type == "session.error"]
    return dict(found)


def world_of(make_world: MakeWorld, found: ToolServerEntry, *steps: Step, limits: HostedRunLimits | None = None) -> World:
    return make_world(in_turn(*steps), servers={"calculator": found}, limits=limits or HostedRunLimits())


async def test_model_calls_the_tools_of_a_server_beside_those_of_the_sandbox(make_world: MakeWorld, server: ToolServer) -> None:
    steps = (Call("calculator__add", {"a": 20, "b": 22}), Call("run_code", {"code": "print(6 * 7)"}))
    world = make_world(answer_results(*steps), servers={"calculator": entry(server.url)})
    events = await world.run(await world.session(tools=BOTH))
    assert results(events) == ["42", "42"]
    assert [each.data["name"] for each in events if each.type == "agent.tool_use"] == ["calculator__add", "run_code"]
    assert events[-2].data["content"][0]["text"] == "The answer is 42."
    assert server.added[-1] == (20, 22)
    offered = world.endpoint.conversations[0].tools
    assert {"calculator__add", "calculator__hang", "run_code"} <= set(offered)


async def test_agent_with_a_server_alone_has_no_sandbox(make_world: MakeWorld, server: ToolServer, at: Bench) -> None:
    world = world_of(make_world, entry(server.url), Call("run_code", {"code": "1"}), Say("No."))
    events = await world.run(await world.session(tools=(CALCULATOR,)))
    assert "There is no tool 'run_code'" in results(events)[0]
    assert at.sandboxes.list(OPERATOR) == []


async def test_failures_of_a_tool_are_results_that_the_model_can_act_on(make_world: MakeWorld, server: ToolServer) -> None:
    calls = [Call("calculator__fail", {}), Call("calculator__add", {"a": "x"}), Call("calculator__repeat", {"count": 100_000})]
    world = world_of(make_world, entry(server.url), calls, Say("Failed."))  # type: ignore[arg-type]  # several calls at once
    events = await world.run(await world.session(tools=BOTH))
    failed, wrong, long = results(events)
    assert "no such number" in failed
    assert "valid" in wrong
    assert MAX_OUTPUT_CHARS < len(long) < MAX_OUTPUT_CHARS + 200
    assert [each.data["is_error"] for each in events if each.type == "agent.tool_result"] == [True, True, False]


async def test_tool_that_hangs_ends_at_the_time_limit_of_its_server(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url, timeout=1), Call("calculator__hang", {}), Say("Failed."))
    events = await world.run(await world.session(tools=BOTH))
    assert "the MCP server 'calculator' failed: it has not responded within 1 seconds" in results(events)[0]
    assert events[-1].data["stop_reason"]["type"] == "end_turn"


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
async def test_result_without_end_is_an_error_that_names_the_limit(make_world: MakeWorld, content_type: str) -> None:
    with tool_server(TOKEN, flood=Flood("tools/call", content_type)) as flooding:
        world = world_of(make_world, entry(flooding.url), Call("calculator__add", {"a": 1, "b": 1}), Say("Failed."))
        events = await world.run(await world.session(tools=BOTH))
    assert f"it responded with more than {MAX_RESPONSE_BYTES:,} bytes, the maximum" in results(events)[0]
    assert events[-1].data["stop_reason"]["type"] == "end_turn"
    assert flooding.sent_bytes < 4 * MAX_RESPONSE_BYTES  # the buffers of the sockets have some MiB more than was read


async def test_list_of_tools_without_end_ends_the_run_with_the_limit(make_world: MakeWorld) -> None:
    with tool_server(TOKEN, flood=Flood("tools/list")) as flooding:
        world = world_of(make_world, entry(flooding.url), Say("Hi."))
        events = await world.run(await world.session(tools=BOTH))
    assert (error(events)["type"], error(events)["mcp_server_name"]) == ("mcp_connection_failed_error", "calculator")
    assert f"{MAX_RESPONSE_BYTES:,} bytes" in error(events)["message"]
    assert flooding.sent_bytes < 4 * MAX_RESPONSE_BYTES


async def test_compressed_result_is_an_error(make_world: MakeWorld) -> None:
    with tool_server(TOKEN, flood=Flood("tools/call", is_compressed=True)) as flooding:
        world = world_of(make_world, entry(flooding.url), Call("calculator__add", {"a": 1, "b": 1}), Say("Failed."))
        events = await world.run(await world.session(tools=BOTH))
    assert "it responded with compressed content, which is refused" in results(events)[0]


@pytest.mark.parametrize("json_response", [False, True])
async def test_long_result_within_the_limit_is_shortened(make_world: MakeWorld, *, json_response: bool) -> None:
    with tool_server(TOKEN, json_response=json_response) as server:
        world = world_of(make_world, entry(server.url), Call("calculator__repeat", {"count": MAX_RESPONSE_BYTES // 3}), Say("Done."))
        events = await world.run(await world.session(tools=BOTH))
    assert MAX_OUTPUT_CHARS < len(results(events)[0]) < MAX_OUTPUT_CHARS + 200


async def test_interrupt_ends_a_call_of_a_server(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url), Call("calculator__hang", {}))
    session = await world.session(tools=BOTH)
    await world.runtime.send(OPERATOR, session, "Wait")
    await world.until(session, "agent.tool_use")
    assert await world.runtime.interrupt(OPERATOR, session)
    assert "interrupted" in results(await world.events(session))[0]


async def test_images_of_a_server_become_files_of_the_session(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url), Call("calculator__draw", {}), Say("Drawn."))
    events = await world.run(await world.session(tools=BOTH))
    assert results(events) == ["(no text)\nimage"]


async def test_calls_of_servers_count_for_the_limit(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url), Call("calculator__add", {"a": 1, "b": 1}), limits=HostedRunLimits(tool_calls=2))
    events = await world.run(await world.session(tools=BOTH))
    assert error(events)["type"] == "tool_use_limit_reached_error"
    assert results(events)[:2] == ["2", "2"]


async def test_server_that_cannot_be_reached_ends_the_run_with_its_name(make_world: MakeWorld) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/mcp?key=secret-in-the-url"
    world = world_of(make_world, entry(url), Say("Hi."))
    events = await world.run(await world.session(tools=BOTH))
    assert (error(events)["type"], error(events)["mcp_server_name"]) == ("mcp_connection_failed_error", "calculator")
    assert "'calculator'" in error(events)["message"]
    assert "secret" not in str(events)


async def test_server_that_refuses_the_credential_is_named_without_it(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url, token="wrong-token"), Say("Hi."))  # noqa: S106 - a wrong one
    events = await world.run(await world.session(tools=BOTH))
    assert "calculator" in error(events)["message"]
    assert "wrong-token" not in str(events)
    assert TOKEN not in str(events)


async def test_credential_that_a_server_repeats_is_in_no_event_and_not_sent_to_the_model(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url), Call("calculator__headers", {}), Say("Done."))
    session = await world.session(tools=BOTH)
    assert results(await world.run(session)) == ["You sent [redacted]."]
    assert TOKEN not in str(await world.at.node.agents.messages(session))  # type: ignore[arg-type]  # an id
    assert TOKEN not in str(world.endpoint.conversations)


async def test_server_that_the_operator_has_not_listed_is_refused(make_world: MakeWorld, server: ToolServer) -> None:
    world = world_of(make_world, entry(server.url), Say("Hi."))
    with pytest.raises(InvalidRequestError, match="'other'") as refused:
        await world.session(tools=({"type": "mcp", "server": "other"},))
    assert "calculator" in refused.value.hint
    session = await world.session(tools=BOTH)
    agent = (await world.at.node.agents.get_session(OPERATOR, session)).agent
    with pytest.raises(InvalidRequestError):
        await world.runtime.update(OPERATOR, agent, AgentChange(tools=({"type": "mcp", "server": "other"},)))
    world.servers = {}
    world.runtime = world.start()
    with pytest.raises(InvalidRequestError):  # the operator has removed the server
        await world.runtime.send(OPERATOR, session, "Hi")


def test_file_names_the_address_and_the_headers_of_each_server(tmp_path: Path) -> None:
    file = tmp_path / "servers.toml"
    file.write_text(
        '[servers.crm]\nurl = "https://crm.example.com/mcp"\nheaders = {Authorization = "Bearer t"}\ntimeout = 5\n[servers.a]\nurl = "http://a"'
    )
    found = load_tool_servers(file)
    assert found == {
        "crm": ToolServerEntry("crm", "https://crm.example.com/mcp", {"Authorization": "Bearer t"}, 5),
        "a": ToolServerEntry("a", "http://a"),
    }
    assert "Bearer" not in repr(found)


@pytest.mark.parametrize(
    "text, told",
    [
        ("servers = 1", "a table for each server"),
        ("[servers.a]", "no URL"),
        ("[servers.a]\nurl = 'ftp://a'", "no URL"),
        ("[servers.a_b]\nurl = 'http://a'", "letters, digits and hyphens"),
        ("[servers.code-exec]\nurl = 'http://a'", "tools of the sandbox"),
        ("[servers.a]\nurl = 'http://a'\nheaders = {A = 1}", "texts as values"),
        ("[servers.a]\nurl = 'http://a'\nheaders = {A = \"b\\nc\"}", "texts as values"),
        ("[servers.a]\nurl = 'http://a'\ntimeout = 0", "out of range"),
        ("[servers.a]\nurl = 'http://a'\ntoken = 'k'", "unknown field 'token'"),
        ("[", "cannot be read"),
    ],
)
def test_invalid_files_are_refused_with_the_reason(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "servers.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=told) as refused:
        load_tool_servers(file)
    assert "SANDLOT_AGENT_MCP_SERVERS" in refused.value.hint
