"""Configurations of MCP clients. Pure: the command line writes the files.

Sources: the documentation of Claude Code (``claude mcp add``), Cursor (``mcp.json``), Visual Studio Code (``mcp.json``) and Codex (``config.toml``).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from sandlot.model.errors import ConflictError, InvalidRequestError

NAME: Final = "sandlot"
KEY_VARIABLE: Final = "SANDLOT_API_KEY"


class McpClient(StrEnum):
    """A program that uses MCP servers."""

    CLAUDE = "claude"
    CURSOR = "cursor"
    VSCODE = "vscode"
    CODEX = "codex"


FILES: Final[Mapping[McpClient, tuple[str, str]]] = {
    McpClient.CURSOR: (".cursor/mcp.json", ".cursor/mcp.json"),
    McpClient.VSCODE: (".vscode/mcp.json", ".config/Code/User/mcp.json"),
    McpClient.CODEX: (".codex/config.toml", ".codex/config.toml"),
}
"""Client -> file in a project, file in the home directory. Claude Code is configured by its own command."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Server that a client uses.

    Args:
        url: URL of ``/mcp``. None: the client starts ``command``.
        api_key: API key for the URL; None: none.
        command: Command line that serves MCP on standard input and output.
        env: Environment variables of the command.
    """

    url: str | None = None
    api_key: str | None = None
    command: Sequence[str] = ("sandlot", "mcp")
    env: Mapping[str, str] | None = None


def claude_command(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the command that adds the server to Claude Code."""
    if endpoint.url is not None:
        header = ("--header", f"Authorization: Bearer {endpoint.api_key}") if endpoint.api_key else ()
        return ("claude", "mcp", "add", "--transport", "http", NAME, endpoint.url, *header)
    variables = [word for name, value in (endpoint.env or {}).items() for word in ("--env", f"{name}={value}")]
    return ("claude", "mcp", "add", NAME, *variables, "--", *endpoint.command)


def configuration(client: McpClient, endpoint: Endpoint) -> str:
    """Return the configuration of a client as text: a command line for Claude Code, otherwise the content of a new file."""
    match client:
        case McpClient.CLAUDE:
            return f"{shlex.join(claude_command(endpoint))}\n"
        case McpClient.CODEX:
            return _codex_table(endpoint)
        case McpClient.CURSOR | McpClient.VSCODE:
            return _as_json({_section(client): {NAME: _entry(client, endpoint)}})


def merged(client: McpClient, endpoint: Endpoint, content: str) -> str:
    """Return the content of a configuration file with the server added.

    Args:
        client: Client with a configuration file.
        endpoint: The server.
        content: Present content; empty if there is no file.

    Raises:
        InvalidRequestError: The file is not JSON without comments, and cannot be changed safely.
        ConflictError: The file of Codex has the server already.
    """
    if not content.strip():
        return configuration(client, endpoint)
    if client is McpClient.CODEX:
        if re.search(rf"^\s*\[\s*mcp_servers\s*\.\s*\"?{NAME}\"?\s*[\].]", content, re.MULTILINE):
            raise ConflictError(f"The file has a server {NAME!r} already.", hint="Remove it, or change it by hand.")
        return f"{content.rstrip()}\n\n{_codex_table(endpoint)}"
    section = _section(client)
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    servers = found.get(section, {}) if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(servers, dict):
        raise InvalidRequestError("The file is not the JSON of a configuration.", hint="Add the printed configuration by hand.")
    return _as_json({**found, section: {**servers, NAME: _entry(client, endpoint)}})


def _section(client: McpClient) -> str:
    return "servers" if client is McpClient.VSCODE else "mcpServers"


def _entry(client: McpClient, endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.url is not None:
        entry: dict[str, Any] = {"type": "http"} if client is McpClient.VSCODE else {}
        entry["url"] = endpoint.url
        return entry | ({"headers": {"Authorization": f"Bearer {endpoint.api_key}"}} if endpoint.api_key else {})
    entry = {"type": "stdio"} if client is McpClient.VSCODE else {}
    program, *arguments = endpoint.command
    return entry | {"command": program, "args": arguments} | ({"env": dict(endpoint.env)} if endpoint.env else {})


def _codex_table(endpoint: Endpoint) -> str:
    lines = [f"[mcp_servers.{NAME}]"]
    if endpoint.url is not None:
        lines.append(f"url = {json.dumps(endpoint.url)}")
        if endpoint.api_key:
            lines.append(f"bearer_token_env_var = {json.dumps(KEY_VARIABLE)}")  # Codex ignores headers
    else:
        program, *arguments = endpoint.command
        lines += [f"command = {json.dumps(program)}", f"args = {json.dumps(arguments)}"]
        if endpoint.env:
            lines.append("env = { " + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in endpoint.env.items()) + " }")
    return "\n".join(lines) + "\n"


def _as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
