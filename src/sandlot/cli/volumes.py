"""``sandlot volume``: create, list, inspect, mount and delete volumes."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, Quiet, SandboxId, VolumeMount, parse_size_bytes, parse_volume, query_client
from sandlot.cli.output import age, as_json, note, print_ids, size, table

volumes = typer.Typer(help="Create, list, inspect, mount and delete volumes.", no_args_is_help=True)


@volumes.command("create")
def create(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name; up to 63 lower-case letters, digits, '_' and '-', unique among your volumes.")],
    size_bytes: Annotated[
        int | None, typer.Option("--size", metavar="SIZE", help="Limit of its content, such as 10G. (default: 1G)", parser=parse_size_bytes)
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Create a volume of a given size.

    Prints its id.
    """
    from sandlot.sdk import Client

    with Client() as client:
        created = client.volumes.create(name, size_bytes)
    typer.echo(as_json(created) if json_output else created.id)


@volumes.command("ls")
def ls(*, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List volumes and the space they use."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.volumes.list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        rows = [[each.id, each.name, size(each.size_bytes), size(each.used_bytes), str(len(each.attached)), age(each.created_at)] for each in found]
        table(["ID", "NAME", "SIZE", "USED", "SANDBOXES", "AGE"], rows)
    else:
        note("No volumes. Create one with `sandlot volume create NAME`.")


@volumes.command("info")
def info(*, volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Volume id or name.")], json_output: JsonOutput = False) -> None:
    """Show one volume."""
    from sandlot.sdk import Client

    with Client() as client:
        found = client.volumes.get(volume)
    if json_output:
        typer.echo(as_json(found))
        return
    details = {
        "id": found.id,
        "name": found.name,
        "size": size(found.size_bytes),
        "used": size(found.used_bytes),
        "age": age(found.created_at),
        "sandboxes": " ".join(found.attached),
    }
    table(["FIELD", "VALUE"], [[field, value] for field, value in details.items() if value])


@volumes.command("rm")
def rm(*, names: Annotated[list[str], typer.Argument(metavar="VOLUME", help="Volume ids or names.")]) -> None:
    """Delete volumes and their content.

    A volume that is mounted in a sandbox is not deleted. Prints each deleted volume as it was given. Exits with status 1 if any could not be
    deleted.
    """
    from sandlot.sdk import Client

    with Client() as client:
        run_for_each(names, client.volumes.delete)


@volumes.command("attach")
def attach(
    *,
    sandbox: SandboxId,
    volume: Annotated[
        VolumeMount, typer.Argument(metavar="NAME:/PATH[:ro]", help="Volume, path of its mount, and 'ro' for read-only.", parser=parse_volume)
    ],
) -> None:
    """Mount a volume in a running sandbox.

    A paused or hibernated sandbox is resumed first.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        Sandbox.connect(sandbox, client=client).attach_volume(volume.volume, volume.path, read_only=volume.read_only)


@volumes.command("detach")
def detach(
    *, sandbox: SandboxId, path: Annotated[str, typer.Argument(metavar="PATH", help="Path of the mount, or the volume's name or id.")]
) -> None:
    """Unmount a volume from a sandbox; its content stays.

    A volume that a process uses is not unmounted.
    """
    from sandlot.sdk import Sandbox

    with query_client() as client:
        Sandbox.connect(sandbox, client=client).detach_volume(path)
