"""``sandlot snapshot``: sandboxes as they were at a moment, to start others from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sandlot.cli.options import InJson, SandboxId, asking, snapshot_names
from sandlot.cli.output import age, as_json, note, size, table, visible

if TYPE_CHECKING:
    from sandlot.sdk import SnapshotInfo

snapshots = typer.Typer(help="Sandboxes as they were at a moment, to start others from.", no_args_is_help=True)

Named = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="The snapshot, by its id or its name.", autocompletion=snapshot_names)]


@snapshots.command("create")
def create(
    *,
    sandbox: SandboxId,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call it; no two of yours have one name.")] = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="memory (memory and files) or files (what starts from it boots, and finds the files).")
    ] = "memory",
    in_json: InJson = False,
) -> None:
    """Keep what a sandbox is at this moment, and print the snapshot's id. The sandbox goes on."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        made = Sandbox.connect(sandbox, client=client, resume=False).snapshot(name, kind)
    if in_json:
        typer.echo(as_json(made))
    else:
        note(f"sandlot: {size(made.size_bytes)} on the service's disk")
        typer.echo(made.id)


@snapshots.command("ls")
def ls(
    *,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="So many at most.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The ids only.")] = False,
    in_json: InJson = False,
) -> None:
    """List the snapshots that there are, oldest first."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.snapshots.list(limit=limit)
    if in_json:
        typer.echo(as_json(found))
    elif quiet:
        for each in found:
            typer.echo(each.id)
    elif found:
        rows = [
            [each.id, each.name or "-", each.kind, each.template, each.isolation, size(each.size_bytes), age(each.created_at), each.sandbox]
            for each in found
        ]
        table(["ID", "NAME", "KIND", "TEMPLATE", "ISOLATION", "SIZE", "AGE", "FROM"], rows)
    else:
        note("There is no snapshot; `sandlot snapshot create ID` takes one.")


@snapshots.command("info")
def info(*, snapshot: Named, in_json: InJson = False) -> None:
    """Look at a snapshot: what it was taken of, and what it takes."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.snapshots.get(snapshot)
    if in_json:
        typer.echo(as_json(found))
        return
    rows = [[name, value] for name, value in _facts(found).items() if value]
    table(["FACT", "VALUE"], rows)


@snapshots.command("rm")
def rm(*, snapshots: Annotated[list[str], typer.Argument(metavar="SNAPSHOT...", help="By id or name.", autocompletion=snapshot_names)]) -> None:
    """Remove snapshots; sandboxes that were started from them live on.

    Prints each as it was given.
    """
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import Client

    failed = False
    with Client() as client:
        for each in snapshots:
            try:
                client.snapshots.delete(each)
            except SandlotError as error:
                note(f"sandlot: {each}: {error}")
                failed = True
            else:
                typer.echo(visible(each))
    raise typer.Exit(1 if failed else 0)


def _facts(found: SnapshotInfo) -> dict[str, str]:
    return {
        "id": found.id,
        "name": found.name or "",
        "kind": found.kind,
        "sandbox": found.sandbox,
        "template": found.template,
        "isolation": found.isolation,
        "size": size(found.size_bytes),
        "age": age(found.created_at),
        "node": found.node,
        "problem": found.problem or "",
    }
