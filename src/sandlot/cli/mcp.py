"""``sandlot mcp``: serve MCP on standard input and output, and configure clients.

The SDKs are imported inside the commands, so that ``--help`` and shell completion start quickly.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.output import note

if TYPE_CHECKING:
    from sandlot.mcp.clients import Endpoint

mcp = typer.Typer(help="Serve the tools of sandboxes to MCP clients, and configure the clients.", invoke_without_command=True)

_CLIENTS = ("claude", "cursor", "vscode", "codex")


@mcp.callback()
def serve(
    context: typer.Context,
    *,
    template: Annotated[str | None, typer.Option("--template", metavar="TEMPLATE", help="Template of new sandboxes.")] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Lifetime of new sandboxes.", min=1, max=604800)] = 21600.0,
) -> None:
    """Serve MCP on standard input and output until the client closes the input.

    A client starts this command. The sandboxes are those of the service at SANDLOT_URL, or of the local service. The sandbox that calls without a
    sandbox id share is ended with the connection.
    """
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from sandlot.mcp.stdio import serve_stdio

    asyncio.run(serve_stdio(template=template, timeout_s=timeout))


@mcp.command("install")
def install(
    client: Annotated[str, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(_CLIENTS)}.", autocompletion=lambda: list(_CLIENTS))],
    *,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Use the endpoint /mcp of this service in place of the command `sandlot mcp`.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the file of the client in place of printing the configuration.")] = False,
    user: Annotated[bool, typer.Option("--user", help="With --write: change the file in the home directory, not the one of the project.")] = False,
) -> None:
    """Print the configuration with which a client uses Sandlot, or write it to the client's file.

    The configuration has the API key of SANDLOT_API_KEY, if it is set.
    """
    from sandlot.mcp.clients import FILES, McpClient, claude_command, configuration, merged
    from sandlot.sdk import InvalidRequestError

    if client not in _CLIENTS:
        raise InvalidRequestError(f"There is no client {client[:32]!r}.", hint=f"Use one of: {', '.join(_CLIENTS)}.")
    chosen, endpoint = McpClient(client), _endpoint(url)
    if not write:
        typer.echo(configuration(chosen, endpoint), nl=False)
        if chosen in FILES:
            note(f"sandlot: put this into {FILES[chosen][0]} of a project or ~/{FILES[chosen][1]}, or run this command with --write")
        return
    if chosen is McpClient.CLAUDE:
        _run_claude(claude_command(endpoint))
        return
    path = Path.home() / FILES[chosen][1] if user else Path(FILES[chosen][0])
    content = path.read_text("utf-8") if path.exists() else ""
    changed = merged(chosen, endpoint, content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)  # a new file: it may have the API key
    path.write_text(changed, "utf-8")
    note(f"sandlot: wrote {path}")


def _endpoint(url: str | None) -> Endpoint:
    import os
    import sys

    from sandlot.mcp.clients import KEY_VARIABLE, Endpoint

    key = os.environ.get(KEY_VARIABLE) or None
    if url is not None:
        return Endpoint(url=url if url.rstrip("/").endswith("/mcp") else f"{url.rstrip('/')}/mcp", api_key=key)
    env = {name: value for name in ("SANDLOT_URL", KEY_VARIABLE, "SANDLOT_DATA_DIR") if (value := os.environ.get(name))}
    program = Path(sys.argv[0]).absolute()
    return Endpoint(command=(str(program) if program.name == "sandlot" else "sandlot", "mcp"), env=env)


def _run_claude(command: tuple[str, ...]) -> None:
    import shutil
    import subprocess

    from sandlot.sdk import HostError

    if shutil.which(command[0]) is None:
        raise HostError("Claude Code is not installed: there is no program `claude`.", hint="Run the printed command where it is installed.")
    finished = subprocess.run(command, check=False)
    if finished.returncode:
        raise typer.Exit(finished.returncode)
