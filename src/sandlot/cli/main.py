"""The program ``sandlot``: its commands, and what becomes of their errors.

Exit status:
- 0 is success, 1 a failure of ours, 2 a wrong use of the command line, 130 an interrupt.
- ``run``, ``exec``, ``repl``, ``install``, ``execute`` and ``shell`` give the program's own: its exit status, 128 + the signal that ended it, 124
  when it ran out of time (as timeout(1) of coreutils has it), 126 and 127 when it cannot be run or is not there (as env(1) has it). A failure of
  ours is 125 there, whatever it is. Whatever is not the program's own comes with a line on standard error that begins with ``sandlot:``.

Laws:
- An error is a line that says what happened and a line that says what to do; SANDLOT_DEBUG=1 shows the traceback as well.
- Standard output carries results only: what is for a person goes to standard error.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import typer

from sandlot.cli import (
    contexts,
    copy,
    file_store,
    forks,
    fs,
    history,
    keys,
    lifecycle,
    limits,
    packages,
    pools,
    processes,
    programs,
    run,
    sandboxes,
    service,
    snapshots,
    tunnels,
    volumes,
    webhooks,
)
from sandlot.cli.bench import command as bench
from sandlot.cli.demo import command as demo
from sandlot.cli.doctor import command as doctor
from sandlot.cli.output import visible
from sandlot.cli.repl import session

OURS = 125
"""What ``run`` and ``exec`` exit with when Sandlot failed, not the program; docker(1) has the same."""
INTERRUPTED = 130

app = typer.Typer(
    name="sandlot",
    help="Sandboxes for code that an AI agent wrote.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("create")(sandboxes.create)
app.command("ls")(sandboxes.ls)
app.command("info")(sandboxes.info)
app.command("set-timeout")(sandboxes.set_timeout)
app.command("usage")(limits.usage)
app.command("limit")(limits.limit)
app.command("exec", context_settings=run.EXEC_SETTINGS)(run.execute)
app.command("repl")(session.repl)
app.add_typer(contexts.contexts, name="contexts")
app.command("install")(packages.install)
app.command("execute")(programs.execute)
app.command("shell")(processes.shell)
app.command("ps")(processes.ps)
app.command("ports")(processes.ports)
app.command("forward")(tunnels.forward)
app.command("logs")(processes.logs)
app.command("kill")(processes.kill)
app.command("cp")(copy.cp)
app.add_typer(fs.fs, name="fs")
app.command("rm")(sandboxes.rm)
app.command("pause")(lifecycle.pause)
app.command("resume")(lifecycle.resume)
app.command("hibernate")(lifecycle.hibernate)
app.command("wake")(lifecycle.wake)
app.add_typer(snapshots.snapshots, name="snapshot")
app.add_typer(volumes.volumes, name="volume")
app.command("fork")(forks.fork)
app.command("tree")(forks.tree)
app.command("promote")(forks.promote)
app.add_typer(file_store.files, name="files")
app.command("executions")(history.executions)
app.command("events")(history.events)
app.add_typer(webhooks.webhooks, name="webhooks")
app.command("demo")(demo.demo)
app.command("bench", rich_help_panel="Service")(bench.bench)
app.command("serve", rich_help_panel="Service")(service.serve)
app.command("stop", rich_help_panel="Service")(service.stop)
app.command("templates", rich_help_panel="Service")(service.templates)
app.command("capacity", rich_help_panel="Service")(service.capacity)
app.add_typer(keys.keys, name="keys", rich_help_panel="Service")
app.add_typer(pools.pool, name="pool", rich_help_panel="Service")
app.command("doctor", rich_help_panel="Service")(doctor.doctor)
app.command("version", rich_help_panel="Service")(service.version)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Without the program's name; by default the process's own.
    """
    _fill_descriptors()
    sys.exit(dispatch(sys.argv[1:] if arguments is None else arguments))


def dispatch(arguments: list[str]) -> int:
    """Run the command line; its exit status."""
    ours = OURS if arguments[:1] in (["run"], ["exec"], ["repl"], ["install"], ["execute"], ["shell"]) else None
    try:
        return _command()(args=arguments, prog_name="sandlot", standalone_mode=False) or 0
    except typer.Abort:
        return INTERRUPTED
    except typer.TyperException as error:
        _say(error.format_message().removeprefix("Invalid value: "), _usage_hint(error))
        return ours or 2
    except Exception as error:
        if os.environ.get("SANDLOT_DEBUG", "") not in {"", "0"}:
            raise
        _say(*_described(error))
        return ours or 1


@functools.cache
def _command() -> Any:  # noqa: ANN401 - typer has no public type for it
    """Build the tree of commands, which takes a tenth of a second: once per process, however often it dispatches."""
    return typer.main.get_command(app)


def _fill_descriptors() -> None:
    """Give a closed standard input, output or error to /dev/null: otherwise the next socket takes its number, and a program's output goes there."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # open(2) takes the lowest number that is free.
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - a descriptor, for good


def _described(error: Exception) -> tuple[str, str]:
    from sandlot.model.errors import SandlotError

    if isinstance(error, SandlotError):
        return error.message, error.hint
    if isinstance(error, OSError):
        return str(error), ""
    return f"{type(error).__name__}: {error}", "This is a defect in Sandlot; SANDLOT_DEBUG=1 shows where."


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"See `{context.command_path if context is not None else 'sandlot'} --help`."


def _say(message: str, hint: str) -> None:
    first, *more = message.rstrip().split("\n")
    typer.echo(f"sandlot: {visible(first)}", err=True)
    for line in more:  # further in, so that none of them passes for one of ours
        typer.echo(f"    {visible(line.strip())}", err=True)
    if hint:
        typer.echo(f"  {visible(hint)}", err=True)
