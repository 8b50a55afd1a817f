"""``sandlot events``: list and follow events of sandboxes."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import JsonOutput, complete_sandboxes, query_client, resolve_sandbox_id
from sandlot.cli.output import as_json, note, plain, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import Client, EventInfo


def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new events until Ctrl-C.")] = False,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", metavar="SANDBOX", help="Only events of this sandbox.", autocompletion=complete_sandboxes)
    ] = None,
    after: Annotated[int | None, typer.Option("--after", metavar="N", min=0, help="Only events with a larger sequence number.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Print only the newest N events.")] = None,
    json_output: JsonOutput = False,
) -> None:
    """List sandbox events, oldest first; follow new ones with `--follow`.

    An operator's key and the local service's unix socket show events of all owners. With --follow, only new events are printed, unless --after or
    --limit asks for earlier ones; --json prints one object per line then.
    """
    with query_client() as client:
        sandbox_id = resolve_sandbox_id(client, sandbox)
        if follow:
            _follow(client, sandbox_id, after, limit, json_output=json_output)
            return
        found = _stored(client, sandbox_id, after, limit)
    if json_output:
        typer.echo(as_json(found))
    elif found:
        table(["SEQUENCE", "AT", "TYPE", "SANDBOX", "DETAILS"], [_row(event) for event in found])
    else:
        note("No events.")


def _stored(client: Client, sandbox: str | None, after: int | None, limit: int | None) -> list[EventInfo]:
    """Return stored events, oldest first."""
    if after is None and limit is not None:
        return client.events.list(sandbox=sandbox, limit=limit)[::-1]
    return [*deque(client.events.iter(after=after or 0, sandbox=sandbox), maxlen=limit)]


def _follow(client: Client, sandbox: str | None, after: int | None, limit: int | None, *, json_output: bool) -> None:
    def show(event: EventInfo) -> None:
        typer.echo(json.dumps(plain(event)) if json_output else visible("  ".join(_row(event))))

    if limit is not None:
        stored = _stored(client, sandbox, after, limit)
        for event in stored:
            show(event)
        after = stored[-1].sequence if stored else after or 0
    for event in client.events.follow(after=after, sandbox=sandbox):
        show(event)


def _row(event: EventInfo) -> list[str]:
    details = " ".join(f"{name}={value}" for name, value in event.data.items() if value not in (None, "", []))
    return [str(event.sequence), event.at.isoformat(timespec="seconds"), event.type, event.sandbox or "-", details]
