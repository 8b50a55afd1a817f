"""``sandlot ps``, ``logs``, ``ports`` and ``process``: processes of a sandbox and their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Quiet, Raw, SandboxId, query_client
from sandlot.cli.output import as_json, duration, note, print_ids, table

if TYPE_CHECKING:
    from sandlot.sdk import ProcessInfo

MAX_COMMAND_CHARS = 80
"""Length of a command line in a table."""

process = typer.Typer(help="Send signals to processes of a sandbox.", no_args_is_help=True)


def ps(
    *,
    sandbox: SandboxId,
    running: Annotated[bool, typer.Option("--running", help="Only running processes.")] = False,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TEXT", help="Only processes with this tag.")] = None,
    quiet: Quiet = False,
    json_output: JsonOutput = False,
) -> None:
    """List processes started through the service.

    Running processes are listed, and the last ones that ended.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        known = Sandbox.connect(sandbox, client=client, resume=False).commands.list()
    found = [info for info in known if (info.running or not running) and tag in {None, info.tag}]
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        table(["ID", "PID", "STATE", "DURATION", "TERMINAL", "TAG", "COMMAND"], [_row(info) for info in found])
    else:
        note("No processes were started through the service.")


def ports(*, sandbox: SandboxId, json_output: JsonOutput = False) -> None:
    """List TCP ports that accept connections inside a sandbox, with URLs that a browser opens."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).ports()
    if json_output:
        typer.echo(as_json(found))
    elif found:
        table(["PORT", "ADDRESS", "URL"], [[str(each.port), each.address, each.url or "-"] for each in found])
    else:
        note("No port accepts connections.")


def logs(
    *,
    sandbox: SandboxId,
    process_id: Annotated[
        str | None, typer.Argument(metavar="PROCESS", help="Process id, as `sandlot ps` shows it. (default: all code and commands)")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new output until the process or sandbox ends.")] = False,
    raw: Raw = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object per line: stream, text and lost_bytes.")] = False,
) -> None:
    """Print the output of a sandbox, or of one process.

    Standard output goes to standard output, standard error to standard error. The output of a sandbox is that of all its code and commands, in the
    order of their start, as far as the service keeps it; the sandbox can be paused, hibernated or ended. On a terminal, control characters are
    escaped.
    """
    from sandlot.cli.passthrough import run_until_signal
    from sandlot.cli.terminals import print_logs, print_output

    if process_id is None:
        raise typer.Exit(run_until_signal(print_logs(sandbox, follow=follow, raw=raw, json_output=json_output)))
    raise typer.Exit(run_until_signal(print_output(sandbox, process_id, follow=follow, raw=raw, json_output=json_output)))


@process.command("kill")
def kill(
    *,
    sandbox: SandboxId,
    processes: Annotated[list[str], typer.Argument(metavar="PROCESS", help="Process ids.")],
    signal: Annotated[str, typer.Option("--signal", "-s", metavar="SIGNAL", help="Name of the signal, such as TERM, or its number.")] = "KILL",
) -> None:
    """Send a signal to processes and their children (default: KILL).

    Prints each process that got the signal. Exits with status 1 if any was not running.
    """
    from sandlot.sdk import ConflictError, Sandbox

    with query_client() as client:
        commands = Sandbox.connect(sandbox, client=client, resume=False).commands

        def send(process_id: str) -> None:
            if not commands.kill(process_id, int(signal) if signal.isdecimal() else signal):
                raise ConflictError("The process is not running.")

        run_for_each(processes, send)


def _row(info: ProcessInfo) -> list[str]:
    state = "running" if info.running else f"{info.reason} {info.exit_code}"
    command = " ".join(info.argv)
    shown = command if len(command) <= MAX_COMMAND_CHARS else f"{command[: MAX_COMMAND_CHARS - 1]}…"
    return [info.id, str(info.pid), state, duration(info.duration_s), "yes" if info.pty else "-", info.tag or "-", shown]
