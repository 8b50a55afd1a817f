"""Configurations of MCP clients."""

from __future__ import annotations

import json
import shlex
import tomllib

import pytest

from sandlot.mcp.clients import Endpoint, McpClient, configuration, merged
from sandlot.model.errors import ConflictError, InvalidRequestError
from tests.support.cases import cases

LOCAL = Endpoint(command=("/opt/bin/sandlot", "mcp"), env={"SANDLOT_URL": "http://localhost:8080", "SANDLOT_API_KEY": 'k"1'})
REMOTE = Endpoint(url="https://sandbox.test/mcp", api_key="k1")


def test_claude_is_configured_by_its_command() -> None:
    assert shlex.split(configuration(McpClient.CLAUDE, REMOTE)) == [
        *("claude", "mcp", "add", "--transport", "http", "sandlot", "https://sandbox.test/mcp", "--header", "Authorization: Bearer k1"),
    ]
    assert shlex.split(configuration(McpClient.CLAUDE, LOCAL)) == [
        *("claude", "mcp", "add", "sandlot", "--env", "SANDLOT_URL=http://localhost:8080", "--env", 'SANDLOT_API_KEY=k"1'),
        *("--", "/opt/bin/sandlot", "mcp"),
    ]


@cases(
    "client, endpoint, expected",
    [
        (McpClient.CURSOR, REMOTE, {"mcpServers": {"sandlot": {"url": REMOTE.url, "headers": {"Authorization": "Bearer k1"}}}}),
        (McpClient.CURSOR, LOCAL, {"mcpServers": {"sandlot": {"command": "/opt/bin/sandlot", "args": ["mcp"], "env": LOCAL.env}}}),
        (McpClient.VSCODE, REMOTE, {"servers": {"sandlot": {"type": "http", "url": REMOTE.url, "headers": {"Authorization": "Bearer k1"}}}}),
        (McpClient.VSCODE, Endpoint(), {"servers": {"sandlot": {"type": "stdio", "command": "sandlot", "args": ["mcp"]}}}),
    ],
)
def test_json_clients_have_their_form(client: McpClient, endpoint: Endpoint, expected: object) -> None:
    assert json.loads(configuration(client, endpoint)) == expected


def test_codex_reads_the_key_from_the_environment() -> None:
    assert tomllib.loads(configuration(McpClient.CODEX, REMOTE)) == {
        "mcp_servers": {"sandlot": {"url": REMOTE.url, "bearer_token_env_var": "SANDLOT_API_KEY"}}
    }
    assert tomllib.loads(configuration(McpClient.CODEX, LOCAL)) == {
        "mcp_servers": {"sandlot": {"command": "/opt/bin/sandlot", "args": ["mcp"], "env": LOCAL.env}}
    }


def test_other_servers_and_settings_of_a_file_stay() -> None:
    before = {"mcpServers": {"other": {"url": "x"}, "sandlot": {"url": "old"}}, "more": 1}
    after = json.loads(merged(McpClient.CURSOR, REMOTE, json.dumps(before)))
    assert (after["more"], after["mcpServers"]["other"], after["mcpServers"]["sandlot"]["url"]) == (1, {"url": "x"}, REMOTE.url)
    toml = tomllib.loads(merged(McpClient.CODEX, REMOTE, 'model = "m"\n\n[mcp_servers.other]\nurl = "x"'))
    assert (toml["model"], set(toml["mcp_servers"])) == ("m", {"other", "sandlot"})


@cases("content", ["// comment\n{}", "[]", '{"mcpServers": []}', "{"])
def test_file_that_cannot_be_changed_safely_stays(content: str) -> None:
    with pytest.raises(InvalidRequestError):
        merged(McpClient.CURSOR, REMOTE, content)


@cases("content", ["[mcp_servers.sandlot]\nurl = 'x'\n", '[mcp_servers."sandlot"]\n', "[mcp_servers.sandlot.env]\n"])
def test_codex_server_that_exists_is_not_added_again(content: str) -> None:
    with pytest.raises(ConflictError):
        merged(McpClient.CODEX, REMOTE, content)
