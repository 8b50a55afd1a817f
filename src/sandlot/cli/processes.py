"""``sandlot shell``, ``ps``, ``ports``, ``logs`` and ``kill``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, Raw, SandboxId, asking
from sandlot.cli.output import as_json, note, pairs, span, table

if TYPE_CHECKING:
    from sandlot.sdk import ProcessInfo

SHOWN_CHARS = 80
"""Of a command, in a table."""


def shell(
    *,
    sandbox: SandboxId,
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="Program and arguments, behind '--'. (default: bash)")] = None,
    attach: Annotated[str | None, typer.Option("--attach", "-a", metavar="PROCESS", help="Go back to a terminal that was detached from.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment variable; may be given again.")] = None,
    cwd: Annotated[str | None, typer.Option("--cwd", "-w", metavar="FOLDER", help="Folder to start in. (default: /workspace)")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", metavar="USER", help="'user' or 'root'. (default: user)")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="A word of your own by which `sandlot ps` tells it.")] = None,
    detach_key: Annotated[str, typer.Option("--detach-key", metavar="KEY", help="'ctrl-' and a letter or one of ]\\^_ , or 'none'.")] = "ctrl-]",
) -> None:
    """Open a shell in a sandbox, or any program that wants a terminal.

    Ctrl-] detaches: the program goes on, and `sandlot shell ID --attach PROCESS` goes back to it. Every other key is the program's.
    The exit status is the program's, as with `sandlot exec`; it is 0 after detaching.
    """
    from sandlot.cli.passthrough import run_until_signal
    from sandlot.cli.terminals import Visit, key_code, visit

    if attach is not None and (command or env or cwd or user or tag):
        raise typer.BadParameter("--attach goes back to a program as it runs: it takes no command, environment, folder, user or tag.")
    argv = command[1:] if command and command[0] == "--" else command
    asked = Visit(
        sandbox=sandbox,
        argv=tuple(argv or ()),
        process=attach,
        env=pairs(env, "--env"),
        cwd=cwd,
        user=user,
        tag=tag,
        detach_code=key_code(detach_key),
    )
    raise typer.Exit(run_until_signal(visit(asked)))


def ps(
    *,
    sandbox: SandboxId,
    running: Annotated[bool, typer.Option("--running", "-r", help="Only those that run.")] = False,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="Only those that were started with this tag.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The ids only.")] = False,
    in_json: InJson = False,
) -> None:
    """List the processes that were started in a sandbox: running ones, and the last ones that ended."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        known = Sandbox.connect(sandbox, client=client, resume=False).commands.list()
    found = [info for info in known if (info.running or not running) and tag in {None, info.tag}]
    if in_json:
        typer.echo(as_json(found))
    elif quiet:
        for info in found:
            typer.echo(info.id)
    elif found:
        table(["PROCESS", "PID", "STATE", "TIME", "TERMINAL", "TAG", "COMMAND"], [_row(info) for info in found])
    else:
        note("Nothing was started in it.")


def ports(*, sandbox: SandboxId, in_json: InJson = False) -> None:
    """List the TCP ports on which something listens in a sandbox."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).ports()
    if in_json:
        typer.echo(as_json(found))
    elif found:
        table(["PORT", "ADDRESS"], [[str(each.port), each.address] for each in found])
    else:
        note("Nothing listens in it.")


def logs(
    *,
    sandbox: SandboxId,
    process: Annotated[
        str | None, typer.Argument(metavar="PROCESS", help="One process, by its id (`sandlot ps` lists them). (default: what all runs wrote)")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what it writes, until it ends.")] = False,
    raw: Raw = False,
    in_json: Annotated[bool, typer.Option("--json", help="One JSON object on each line: stream, text, and lost_bytes that nobody read.")] = False,
) -> None:
    """Print what a process wrote, as far as the sandbox keeps it: its output to standard output, its errors to standard error.

    Without a process, what all runs of code and commands wrote, in the order in which they were begun, as far as the log of runs has it: also of a
    sandbox that has ended, and without waking one that rests. With --follow until the sandbox ends.
    On a terminal, control characters are spelled out.
    """
    from sandlot.cli.passthrough import run_until_signal
    from sandlot.cli.terminals import print_logs, print_output

    if process is None:
        raise typer.Exit(run_until_signal(print_logs(sandbox, follow=follow, as_is=raw, in_json=in_json)))
    raise typer.Exit(run_until_signal(print_output(sandbox, process, follow=follow, as_is=raw, in_json=in_json)))


def kill(
    *,
    sandbox: SandboxId,
    processes: Annotated[list[str], typer.Argument(metavar="PROCESS", help="The processes, by their ids.")],
    signal: Annotated[str, typer.Option("--signal", "-s", metavar="SIGNAL", help="A name, such as TERM, or a number.")] = "KILL",
) -> None:
    """End processes of a sandbox, with all that they started, or send them another signal."""
    from sandlot.sdk import Sandbox

    gone = False
    with asking() as client:
        commands = Sandbox.connect(sandbox, client=client, resume=False).commands
        for process in processes:
            if commands.kill(process, int(signal) if signal.isdecimal() else signal):
                typer.echo(process)
            else:
                note(f"sandlot: {process} does not run.")
                gone = True
    raise typer.Exit(1 if gone else 0)


def _row(info: ProcessInfo) -> list[str]:
    state = "running" if info.running else f"{info.reason} {info.exit_code}"
    command = " ".join(info.argv)
    shown = command if len(command) <= SHOWN_CHARS else f"{command[: SHOWN_CHARS - 1]}…"
    return [info.id, str(info.pid), state, span(info.duration_s), "yes" if info.pty else "-", info.tag or "-", shown]
