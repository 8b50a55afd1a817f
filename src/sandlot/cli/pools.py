"""``sandlot pool``: sandboxes that are made before anybody asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.options import InJson, Metadata, TemplateName, asking
from sandlot.cli.output import as_json, note, pairs, size, table

if TYPE_CHECKING:
    from sandlot.sdk import PoolInfo

pool = typer.Typer(help="Sandboxes that are made before anybody asks.", no_args_is_help=True)

PoolName = Annotated[str, typer.Argument(metavar="ID|TEMPLATE", help="The pool: its id, or its template where you have one pool only of that.")]
_WARM, _MAX, _PREPARED = (
    "Sandboxes that are always kept ready.",
    "The most that it grows to.",
    "Prepared ones with nothing in them, besides; operators only.",
)


@pool.command("create")
def create_pool(  # noqa: PLR0913 - each is an option
    *,
    template: TemplateName = None,
    warm: Annotated[int, typer.Option("--warm", metavar="N", min=0, help=_WARM)] = 1,
    most: Annotated[int | None, typer.Option("--max", metavar="N", min=0, help=f"{_MAX} (default: 4, or --warm)")] = None,
    prepared: Annotated[int | None, typer.Option("--prepared", metavar="N", min=0, help=f"{_PREPARED} (default: 0)")] = None,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="DRIVER", help="(default: auto)")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="Cores of each. (default: 1)")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Of each, such as 512M or 2G. (default: 1G)")] = None,
    disk: Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="What each may write. (default: 5G)")] = None,
    pids: Annotated[int | None, typer.Option("--pids", metavar="N", help="Processes and threads of each. (default: 512)")] = None,
    metadata: Metadata = None,
    in_json: InJson = False,
) -> None:
    """Keep sandboxes of a kind ready, also after a restart of the service.

    Prints the pool's id. A request is answered from it where its template, isolation and limits are the pool's.
    """
    words = pairs(metadata, "--metadata") or None
    limits: dict[str, Any] = {"cpus": cpus, "memory": memory, "disk": disk, "pids": pids}
    with asking() as client:
        made = client.pools.create(template, warm=warm, max=most, prepared=prepared, isolation=isolation, metadata=words, **limits)
    typer.echo(as_json(made) if in_json else made.id)


@pool.command("ls")
def list_pools(*, in_json: InJson = False) -> None:
    """List your pools, as an operator all of them: what waits, what was claimed from them, and how many requests they answered."""
    with asking() as client:
        found = client.pools.list()
    if in_json:
        typer.echo(as_json(found))
        return
    if not found:
        note("There is no pool; `sandlot pool create --template NAME --warm N` makes one.")
        return
    heads = ["ID", "TEMPLATE", "ISOLATION", "CPUS", "MEMORY", "READY", "WARM", "MAX", "PREPARED"]
    heads += ["CLAIMED", "MISSED", "HIT RATE", "SNAPSHOT", "OWNER"]
    table(heads, [_row(each) for each in found])
    for each in found:
        if each.error:
            note(f"sandlot: {each.id}: {each.error}")


@pool.command("set")
def set_pool(
    *,
    name: PoolName,
    warm: Annotated[int | None, typer.Option("--warm", metavar="N", min=0, help=_WARM)] = None,
    most: Annotated[int | None, typer.Option("--max", metavar="N", min=0, help=_MAX)] = None,
    prepared: Annotated[int | None, typer.Option("--prepared", metavar="N", min=0, help=_PREPARED)] = None,
    metadata: Metadata = None,
    in_json: InJson = False,
) -> None:
    """Change how much a pool holds, also after a restart of the service; what is left out stays.

    Words take the place of all that there are.
    """
    words = pairs(metadata, "--metadata") or None
    if (warm, most, prepared, words) == (None, None, None, None):
        raise typer.BadParameter("Nothing to change: give --warm, --max, --prepared or --metadata.")
    with asking() as client:
        changed = client.pools.update(name, warm=warm, max=most, prepared=prepared, metadata=words)
    if in_json:
        typer.echo(as_json(changed))
    else:
        table(["ID", "WARM", "MAX", "PREPARED"], [[changed.id, str(changed.warm), str(changed.max), str(changed.prepared)]])


@pool.command("rm")
def remove_pools(*, names: Annotated[list[str], typer.Argument(metavar="ID|TEMPLATE...", help="The pools.")]) -> None:
    """Have pools no more, also after a restart of the service; what waits in them is removed.

    Prints each as it was named.
    """
    with asking() as client:
        for name in names:
            client.pools.delete(name)
            typer.echo(name)


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
