"""SandboxAPI's tools over its MCP endpoint, against a real service: what a model's client sends, one message in a POST (streamable HTTP)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.tcpservice import TcpService


class Model:
    """A client that has greeted the server, as all do.

    Args:
        service: Where.
        key: Whose.
    """

    def __init__(self, service: TcpService, key: str) -> None:
        self.url = f"{service.url}/sandboxapi/mcp"
        headers = {"Authorization": f"Bearer {key}", "Accept": "application/json, text/event-stream"}
        self.http = httpx.Client(headers=headers, timeout=120)
        client = {"name": "model", "version": "1"}
        self.greeted = self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self.http.headers["MCP-Protocol-Version"] = self.greeted["protocolVersion"]
        assert self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202

    def post(self, message: object) -> httpx.Response:
        return self.http.post(self.url, json=message)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        told = self.post({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).json()
        assert (told["jsonrpc"], told["id"]) == ("2.0", method)
        result: dict[str, Any] = told["result"]
        return result

    def call(self, tool: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON
        """What a tool gives that went well."""
        told = self.ask("tools/call", name=tool, arguments=arguments)
        assert not told["isError"], told
        return json.loads(told["content"][0]["text"])

    def failing(self, tool: str, **arguments: Any) -> str:  # noqa: ANN401 - JSON
        """What a model is told of a call that failed."""
        told = self.ask("tools/call", name=tool, arguments=arguments)
        assert told["isError"], told
        return str(told["content"][0]["text"])


@pytest.fixture(scope="module")
def model(service: TcpService) -> Iterator[Model]:
    made = Model(service, service.key("model"))
    yield made
    made.http.close()


def test_mcp_client_lists_the_tools(model: Model) -> None:
    assert (model.greeted["protocolVersion"], model.greeted["serverInfo"]["name"], "tools" in model.greeted["capabilities"]) == (
        *("2025-06-18", "sandboxapi"),
        True,
    )
    assert model.ask("ping") == {}
    tools = {each["name"]: each for each in model.ask("tools/list")["tools"]}
    assert {"execute_code", "execute_batch", "list_languages"} <= set(tools)  # the vendor's own
    assert {"session_execute", "session_install_packages"} <= set(tools)  # its guide's
    assert tools["execute_code"]["inputSchema"]["required"] == ["language", "code"]
    assert all(each["description"] and each["inputSchema"]["type"] == "object" for each in tools.values())
    assert model.http.get(model.url).status_code == 405  # it has nothing to say by itself


def test_tool_runs_a_program_once(model: Model) -> None:
    done = model.call("execute_code", language="python3", code="print(input() * 2)", stdin="ab")
    assert (done["status"], done["stdout"], done["exit_code"]) == ("completed", "abab\n", 0)
    batch = model.call("execute_batch", executions=[{"language": "bash", "code": f"exit {n}"} for n in (0, 3)] + [{"language": "cobol", "code": ""}])
    assert (batch["total"], batch["completed"], batch["failed"]) == (3, 1, 2)
    assert [each["exit_code"] for each in batch["results"]] == [0, 3, -1]
    assert "not supported" in batch["results"][2]["stderr"]
    assert {"python3", "javascript", "bash", "java", "go"} <= {each["id"] for each in model.call("list_languages")["languages"]}
    for executions in ([], [{"language": "bash", "code": ""}] * 21):
        assert "executions" in model.failing("execute_batch", executions=executions)


def test_mcp_session_keeps_its_state(model: Model) -> None:
    session = model.call("session_create", language="python3", idle_ttl=60)
    assert session["idle_ttl"] == 60
    here = {"session_id": session["id"]}
    assert model.call("session_execute", code="x = 41", **here)["status"] == "completed"
    assert model.call("session_execute", code="print(x + 1)", **here)["stdout"] == "42\n"
    late = model.call("session_execute", code="import time; time.sleep(30)", timeout=0.5, **here)
    assert (late["status"], "after 0.5 s" in late["stderr"]) == ("timeout", True)
    assert model.call("session_install_packages", packages=["humanize"], **here)["status"] == "completed"
    assert model.call("session_execute", code="import humanize; print(humanize.intcomma(1000))", **here)["stdout"] == "1,000\n"
    assert model.call("session_close", **here)["status"] == "closed"
    assert "There is no session" in model.failing("session_execute", code="1", **here)


def test_mcp_session_of_another_key_is_not_found(model: Model, service: TcpService) -> None:
    here = {"session_id": model.call("session_create", language="bash")["id"]}
    other = Model(service, service.key("other"))
    for tool, arguments in (("session_execute", {"code": "1"}), ("session_install_packages", {"packages": ["six"]}), ("session_close", {})):
        assert "There is no session" in other.failing(tool, **here, **arguments)
    other.http.close()
    assert model.call("session_execute", code="echo here", **here)["stdout"] == "here\n"
    model.call("session_close", **here)
    assert httpx.post(model.url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"}).status_code == 401
