"""``sandlot agent``: agents that the service runs, and a conversation with one in this terminal."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Quiet, query_client
from sandlot.cli.output import age, as_json, legible, note, print_ids, table

if TYPE_CHECKING:
    from sandlot.sdk import AgentEventInfo, AgentInfo, Client

agents = typer.Typer(help="Create, list and delete agents of the service, and talk to them.", no_args_is_help=True)

MAX_SHOWN_CHARS = 2000
"""Length of the arguments and of the result of a call that ``chat`` prints."""


@agents.command("create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent, for people.")],
    *,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="Model that the operator of the service has configured.")],
    system: Annotated[str, typer.Option("--system", metavar="TEXT", help="System prompt.")] = "",
    system_file: Annotated[
        Path | None, typer.Option("--system-file", metavar="FILE", help="File with the system prompt; '-' for standard input.", allow_dash=True)
    ] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Give the agent no sandbox.")] = False,
    json_output: JsonOutput = False,
) -> None:
    """Create an agent with the tools of a sandbox.

    Prints the id of the agent.
    """
    from sandlot.sdk import Client

    if system_file is not None:
        system = sys.stdin.read() if str(system_file) == "-" else system_file.read_text()
    with Client() as client:
        create_agent = partial(client.agents.create, name, model, system=system)
        created = create_agent(tools=()) if no_tools else create_agent()
    typer.echo(as_json(created) if json_output else created.id)


@agents.command("ls")
def ls(
    *,
    archived: Annotated[bool, typer.Option("--archived", help="Archived agents as well.")] = False,
    quiet: Quiet = False,
    json_output: JsonOutput = False,
) -> None:
    """List agents, newest first."""
    with query_client() as client:
        found = client.agents.list(archived=archived)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        table(["ID", "NAME", "MODEL", "VERSION", "TOOLS", "CREATED"], [_row(each) for each in found])
    else:
        note("No agents. Create one with `sandlot agent create NAME --model MODEL`.")


@agents.command("chat")
def chat(
    agent: Annotated[str | None, typer.Argument(metavar="AGENT", help="Id of the agent; not needed with --session.")] = None,
    *,
    session: Annotated[str | None, typer.Option("--session", metavar="SESSION", help="Continue this session instead of creating one.")] = None,
    message: Annotated[str | None, typer.Option("--message", metavar="TEXT", help="Send this message, print the answer and exit.")] = None,
    template: Annotated[str | None, typer.Option("--template", "-t", metavar="NAME", help="Template of the sandbox.")] = None,
) -> None:
    """Talk to an agent, and see its calls of tools.

    Each line of standard input is a message. Ctrl-C interrupts the agent; at the prompt, Ctrl-D leaves. The session stays: its id is printed at the
    end. Exits with status 1 if the last run did not end with an answer.
    """
    from sandlot.sdk import Client

    if (agent is None) == (session is None):
        raise typer.BadParameter("Pass the id of an agent, or --session.")
    with Client() as client:
        id_ = session or client.agent_sessions.create(agent or "", template=template).id
        ok = True
        if message is not None:
            ok = _talk(client, id_, message)
        else:
            while (line := _read_line()) is not None:
                if line.strip():
                    ok = _talk(client, id_, line)
    note(f"Continue with `sandlot agent chat --session {id_}`.")
    if not ok:
        raise typer.Exit(1)


@agents.command("rm")
def rm(*, ids: Annotated[list[str], typer.Argument(metavar="AGENT", help="Ids of the agents.")]) -> None:
    """Delete agents, with their sessions and the sandboxes of the sessions.

    Prints each agent that was deleted. Exits with status 1 if any was not.
    """
    with query_client() as client:

        def delete(agent: str) -> None:
            for session in client.agent_sessions.list(agent=agent):
                client.agent_sessions.delete(session.id)
            client.agents.delete(agent)

        run_for_each(ids, delete)


def _read_line() -> str | None:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        line = ""
    return line or None


def _talk(client: Client, session: str, message: str) -> bool:
    """Send a message and print the events of its run. Return True if the run ended with an answer."""
    after = client.agent_sessions.send(session, message).last_event
    stop_reason = ""
    while not stop_reason:
        try:
            for event in client.agent_sessions.follow(session, after=after):
                after = event.sequence
                _print(event)
                if event.type == "session.status_idle":
                    stop_reason = str(event.data.get("stop_reason", {}).get("type", "unknown"))
        except KeyboardInterrupt:
            note("Interrupting the agent.")
            client.agent_sessions.interrupt(session)
    return stop_reason == "end_turn"


def _print(event: AgentEventInfo) -> None:
    """Print an event: text of the agent to standard output, everything else to standard error."""
    match event.type:
        case "agent.message":
            typer.echo(legible(event.text))
        case "agent.tool_use":
            arguments = event.data.get("input") or {}
            note(legible(f"[{event.data.get('name')}] " + "\n".join(str(each) for each in arguments.values())[:MAX_SHOWN_CHARS]))
        case "agent.tool_result":
            note(legible(event.text[:MAX_SHOWN_CHARS]))
        case "session.error":
            note(legible(str(event.data.get("error", {}).get("message", "The run failed."))))
        case _:
            pass


def _row(info: AgentInfo) -> list[str]:
    return [info.id, info.name, info.model, str(info.version), "sandbox" if info.tools else "-", age(info.created_at)]
