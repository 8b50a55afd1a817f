"""``sandlot pool``: create, list, change and delete warm pools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import JsonOutput, KeyValue, Metadata, Quiet, TemplateName, as_dict, parse_key_value, parse_size_bytes, query_client
from sandlot.cli.output import as_json, note, print_ids, size, table

if TYPE_CHECKING:
    from sandlot.sdk import PoolInfo

pools = typer.Typer(help="Create, list, change and delete warm pools.", no_args_is_help=True)

_POOL_HELP = "Pool id, or its template if it is your only pool of that template."


@pools.command("create")
def create(  # noqa: PLR0913 - each is an option
    *,
    template: TemplateName = None,
    warm: Annotated[int, typer.Option("--warm", metavar="N", min=0, help="Number of warm sandboxes that are kept ready.")] = 1,
    largest: Annotated[
        int | None, typer.Option("--max", metavar="N", min=0, help="Largest number of warm sandboxes. (default: 4, or --warm if larger)")
    ] = None,
    prepared: Annotated[
        int | None,
        typer.Option("--prepared", metavar="N", min=0, help="Number of prepared sandboxes that are kept besides; operators only."),
    ] = None,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="DRIVER", help="Isolation driver. (default: auto)")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="CPU cores of each sandbox. (default: as the template)")] = None,
    memory: Annotated[
        int | None,
        typer.Option("--memory", metavar="SIZE", help="Memory limit of each sandbox, as 512M. (default: as the template)", parser=parse_size_bytes),
    ] = None,
    disk: Annotated[
        int | None,
        typer.Option("--disk", metavar="SIZE", help="Limit of files that each sandbox writes. (default: as the template)", parser=parse_size_bytes),
    ] = None,
    pids: Annotated[
        int | None, typer.Option("--pids", metavar="N", help="Maximum number of processes and threads of each sandbox. (default: as the template)")
    ] = None,
    metadata: Metadata = None,
    json_output: JsonOutput = False,
) -> None:
    """Keep sandboxes of one template, isolation and size started in advance (`--warm`, `--max`, `--prepared`).

    A create request with the pool's template, isolation and limits gets a warm sandbox. Prints the pool's id.
    """
    limits: dict[str, Any] = {"cpus": cpus, "memory": memory, "disk": disk, "pids": pids}
    with query_client() as client:
        created = client.pools.create(
            template, warm=warm, max=largest, prepared=prepared, isolation=isolation, metadata=as_dict(metadata) or None, **limits
        )
    typer.echo(as_json(created) if json_output else created.id)


@pools.command("ls")
def ls(*, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List warm pools: sandboxes READY, requests that CLAIMED a warm sandbox, requests that MISSED.

    Operators see the pools of all owners.
    """
    with query_client() as client:
        found = client.pools.list()
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        columns = ["ID", "TEMPLATE", "ISOLATION", "CPUS", "MEMORY", "READY", "WARM", "MAX", "PREPARED"]
        table([*columns, "CLAIMED", "MISSED", "HIT RATE", "SNAPSHOT", "OWNER"], [_row(each) for each in found])
        for each in found:
            if each.error:
                note(f"sandlot: {each.id}: {each.error}")
    else:
        note("No pools. Create one with `sandlot pool create --template NAME --warm N`.")


@pools.command("update")
def update(
    *,
    pool: Annotated[str, typer.Argument(metavar="POOL", help=_POOL_HELP)],
    warm: Annotated[int | None, typer.Option("--warm", metavar="N", min=0, help="Number of warm sandboxes that are kept ready.")] = None,
    largest: Annotated[int | None, typer.Option("--max", metavar="N", min=0, help="Largest number of warm sandboxes.")] = None,
    prepared: Annotated[
        int | None, typer.Option("--prepared", metavar="N", min=0, help="Number of prepared sandboxes that are kept besides; operators only.")
    ] = None,
    metadata: Annotated[
        list[KeyValue] | None,
        typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="New metadata; replaces all entries; repeat for more.", parser=parse_key_value),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Change the sizes or metadata of a pool."""
    new_metadata = as_dict(metadata) or None
    if (warm, largest, prepared, new_metadata) == (None, None, None, None):
        raise typer.BadParameter("Nothing to change. Pass an option, such as --warm.")
    with query_client() as client:
        changed = client.pools.update(pool, warm=warm, max=largest, prepared=prepared, metadata=new_metadata)
    if json_output:
        typer.echo(as_json(changed))
    else:
        table(["ID", "WARM", "MAX", "PREPARED"], [[changed.id, str(changed.warm), str(changed.max), str(changed.prepared)]])


@pools.command("rm")
def rm(*, names: Annotated[list[str], typer.Argument(metavar="POOL", help=_POOL_HELP)]) -> None:
    """Delete a pool and its unused sandboxes.

    Prints each deleted pool as it was given. Exits with status 1 if any could not be deleted.
    """
    with query_client() as client:
        run_for_each(names, client.pools.delete)


def _row(info: PoolInfo) -> list[str]:
    missed = sum(number for path, number in info.claims.items() if path != "warm")
    snapshot = "-" if info.snapshot is None else size(info.snapshot.size_bytes)
    return [
        info.id,
        info.template,
        info.isolation,
        f"{info.limits.cpus:g}",
        size(info.limits.memory_bytes),
        f"{info.ready}+{info.filling}" if info.filling else str(info.ready),
        str(info.warm),
        str(info.max),
        f"{info.prepared_ready}/{info.prepared}",
        str(info.claims.get("warm", 0)),
        str(missed),
        "-" if info.hit_rate is None else f"{100 * info.hit_rate:.0f}%",
        snapshot,
        info.owner or "-",
    ]
