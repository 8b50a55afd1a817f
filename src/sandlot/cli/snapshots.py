"""``sandlot snapshot``: create, list, inspect and delete snapshots.

The SDK is imported inside the commands, so that ``--help`` and shell completion start quickly.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Limit, Quiet, SandboxId, complete_snapshots, query_client
from sandlot.cli.output import age, as_json, note, print_ids, size, table

snapshots = typer.Typer(help="Create, list, inspect and delete snapshots.", no_args_is_help=True)

SnapshotName = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Snapshot id or name.", autocompletion=complete_snapshots)]
SnapshotNames = Annotated[list[str], typer.Argument(metavar="SNAPSHOT", help="Snapshot ids or names.", autocompletion=complete_snapshots)]


@snapshots.command("create")
def create(
    *,
    sandbox: SandboxId,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name; unique among your snapshots.")] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="'memory': save memory and files; new sandboxes continue all programs. 'files': save files only; new sandboxes boot.",
        ),
    ] = "memory",
    json_output: JsonOutput = False,
) -> None:
    """Save a sandbox's memory and files, or its files only.

    The sandbox does not change. Prints the snapshot's id.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        snapshot = Sandbox.connect(sandbox, client=client, resume=False).snapshot(name, kind)
    if json_output:
        typer.echo(as_json(snapshot))
    else:
        note(f"sandlot: the snapshot uses {size(snapshot.size_bytes)} of disk space")
        typer.echo(snapshot.id)


@snapshots.command("ls")
def ls(
    *,
    limit: Limit = None,
    quiet: Quiet = False,
    json_output: JsonOutput = False,
) -> None:
    """List snapshots, oldest first."""
    from sandlot.sdk import Client

    # Client() starts a stopped local service: snapshots, unlike sandboxes, exist while no service runs.
    with Client() as client:
        found = client.snapshots.list(limit=limit)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        table(
            ["ID", "NAME", "KIND", "TEMPLATE", "ISOLATION", "SIZE", "AGE", "SANDBOX"],
            [
                [each.id, each.name or "-", each.kind, each.template, each.isolation, size(each.size_bytes), age(each.created_at), each.sandbox]
                for each in found
            ],
        )
    else:
        note("No snapshots. Take one with `sandlot snapshot create SANDBOX`.")


@snapshots.command("info")
def info(*, snapshot: SnapshotName, json_output: JsonOutput = False) -> None:
    """Show one snapshot."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.snapshots.get(snapshot)
    if json_output:
        typer.echo(as_json(found))
        return
    details = {
        "id": found.id,
        "name": found.name,
        "kind": found.kind,
        "sandbox": found.sandbox,
        "template": found.template,
        "isolation": found.isolation,
        "size": size(found.size_bytes),
        "age": age(found.created_at),
        "node": found.node,
        "problem": found.problem,
    }
    table(["FIELD", "VALUE"], [[field, value] for field, value in details.items() if value])


@snapshots.command("rm")
def rm(*, names: SnapshotNames) -> None:
    """Delete snapshots. Sandboxes started from them are not affected.

    Prints each deleted snapshot as it was given. Exits with status 1 if any could not be deleted.
    """
    from sandlot.sdk import Client

    with Client() as client:
        run_for_each(names, client.snapshots.delete)
