"""``sandlot execution``: list and show runs of code and commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import JsonOutput, Quiet, complete_sandboxes, query_client, resolve_sandbox_id
from sandlot.cli.output import age, as_json, note, print_ids, table

if TYPE_CHECKING:
    from sandlot.sdk import ExecutionInfo

MAX_TEXT_CHARS = 60
"""Length of code or of a command in a table."""

executions = typer.Typer(help="List and show runs of code and commands.", no_args_is_help=True)


@executions.command("ls")
def ls(
    *,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", metavar="SANDBOX", help="Only runs in this sandbox.", autocompletion=complete_sandboxes)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Print at most N entries.")] = 50,
    quiet: Quiet = False,
    json_output: JsonOutput = False,
) -> None:
    """List code and command runs, newest first."""
    with query_client() as client:
        found = client.executions.list(sandbox=resolve_sandbox_id(client, sandbox), limit=limit)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        rows = [[run.id, run.sandbox, run.kind, _status(run), _duration(run.duration_s), age(run.created_at), _text(run)] for run in found]
        table(["ID", "SANDBOX", "KIND", "STATUS", "DURATION", "AGE", "CODE OR COMMAND"], rows)
    else:
        note("No runs.")


@executions.command("info")
def info(*, execution: Annotated[str, typer.Argument(metavar="EXECUTION", help="Id of the run.")], json_output: JsonOutput = False) -> None:
    """Show one run.

    Prints its code or command and its output.
    """
    with query_client() as client:
        run = client.executions.get(execution)
    if json_output:
        typer.echo(as_json(run))
        return
    details = {
        "id": run.id,
        "sandbox": run.sandbox,
        "kind": run.kind,
        "language": run.language,
        "origin": run.origin,
        "started": run.created_at.isoformat(timespec="seconds"),
        "status": _status(run),
        "duration": _duration(run.duration_s),
        "files": "" if run.files is None else str(run.files),
        "error": run.error,
        "fault": run.fault,
    }
    table(["FIELD", "VALUE"], [[field, value] for field, value in details.items() if value])
    texts = {"code": run.code, "command": None if run.argv is None else " ".join(run.argv), "stdout": run.stdout, "stderr": run.stderr}
    for title, text in texts.items():
        if text:
            typer.echo(f"\n{title.upper()}")
            for line in text.rstrip("\n").split("\n"):
                table([line], [])


def export(
    *,
    sandbox: Annotated[str, typer.Argument(metavar="SANDBOX", help="Id or name; an ended sandbox by its id.", autocompletion=complete_sandboxes)],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="File to write. (default: standard output)")] = None,
) -> None:
    """Export the code that ran in a sandbox as a Jupyter notebook, with output, charts and exceptions.

    The sandbox may have ended; the service keeps runs for 7 days by default. Needs `pip install 'sandlot[notebook]'`.
    """
    with query_client() as client:
        text = client.executions.notebook(resolve_sandbox_id(client, sandbox) or sandbox)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _status(run: ExecutionInfo) -> str:
    return f"{run.status} {run.exit_code}" if run.status == "exited" and run.exit_code is not None else run.status


def _duration(duration_s: float | None) -> str:
    return "-" if duration_s is None else f"{duration_s:.2f}s"


def _text(run: ExecutionInfo) -> str:
    text = run.code or " ".join(run.argv[2:] if run.argv and run.argv[:2] == ("/bin/bash", "-c") else run.argv or ())
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 3]}..."
