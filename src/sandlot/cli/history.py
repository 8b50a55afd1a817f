"""``sandlot events`` and ``sandlot executions``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, asking, live_ids
from sandlot.cli.output import age, as_json, note, plain, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import EventInfo, ExecutionInfo

SHOWN_CHARS = 60
"""Of code or of a command, in a table."""

OfSandbox = Annotated[str | None, typer.Option("--sandbox", "-s", metavar="ID", help="Of this one only.", autocompletion=live_ids)]


def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until it is interrupted.")] = False,
    sandbox: OfSandbox = None,
    after: Annotated[
        int | None, typer.Option("--after", metavar="N", min=0, help="Begin behind that number. (default: the oldest; with -f what comes)")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="So many at most.")] = None,
    in_json: InJson = False,
) -> None:
    """Tell what happened to sandboxes, oldest first.

    Your own; with an operator's key, and on the service's own machine, everybody's. With --follow and --json one object a line.
    """
    with asking() as client:
        if follow:
            for count, happened in enumerate(client.events.follow(after=after, sandbox=sandbox), 1):
                typer.echo(json.dumps(plain(happened)) if in_json else visible("  ".join(_told(happened))))
                if count == limit:
                    break
            return
        found = list(client.events.iter(after=after or 0, sandbox=sandbox, limit=limit))
    if in_json:
        typer.echo(as_json(found))
    elif found:
        table(["NUMBER", "AT", "EVENT", "SANDBOX", "DETAILS"], [_told(happened) for happened in found])
    else:
        note("Nothing has happened.")


def executions(
    *,
    execution: Annotated[str | None, typer.Argument(metavar="ID", help="One run: its code and its output. (default: list them)")] = None,
    sandbox: OfSandbox = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="So many at most. (default: 50)")] = 50,
    in_json: InJson = False,
) -> None:
    """Tell what ran in sandboxes, newest first.

    Code and commands that were begun over the API, for as long as the service keeps them.
    """
    with asking() as client:
        if execution is not None:
            _one(client.executions.get(execution), in_json=in_json)
            return
        found = client.executions.list(sandbox=sandbox, limit=limit)
    if in_json:
        typer.echo(as_json(found))
    elif found:
        rows = [[run.id, run.sandbox, run.kind, _status(run), _seconds(run.duration_s), age(run.created_at), _what(run)] for run in found]
        table(["ID", "SANDBOX", "KIND", "STATUS", "TOOK", "AGE", "WHAT"], rows)
    else:
        note("Nothing has run.")


def _one(run: ExecutionInfo, *, in_json: bool) -> None:
    if in_json:
        typer.echo(as_json(run))
        return
    facts = {
        "id": run.id,
        "sandbox": run.sandbox,
        "kind": run.kind,
        "language": run.language or "",
        "by": run.origin,
        "begun": run.created_at.isoformat(timespec="seconds"),
        "status": _status(run),
        "took": _seconds(run.duration_s),
        "files": "" if run.files is None else str(run.files),
        "error": run.error or "",
    }
    table(["FACT", "VALUE"], [[name, value] for name, value in facts.items() if value])
    texts = {"code": run.code, "command": None if run.argv is None else " ".join(run.argv), "stdout": run.stdout, "stderr": run.stderr}
    for name, text in texts.items():
        if text:
            typer.echo(f"\n{name.upper()}")
            for line in text.rstrip("\n").split("\n"):
                table([line], [])


def _told(happened: EventInfo) -> list[str]:
    details = " ".join(f"{name}={value}" for name, value in happened.data.items() if value not in (None, "", []))
    return [str(happened.sequence), happened.at.isoformat(timespec="seconds"), happened.type, happened.sandbox or "-", details]


def _status(run: ExecutionInfo) -> str:
    return f"{run.status} {run.exit_code}" if run.status == "exited" and run.exit_code is not None else run.status


def _seconds(duration_s: float | None) -> str:
    return "-" if duration_s is None else f"{duration_s:.2f}s"


def _what(run: ExecutionInfo) -> str:
    text = run.code or " ".join(run.argv[2:] if run.argv and run.argv[:2] == ("/bin/bash", "-c") else run.argv or ())
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."
