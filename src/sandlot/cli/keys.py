"""``sandlot keys``: who may use the service on TCP, and what they may take.

With a service that runs, its API is asked; without one, its store is opened: both see the same keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sandlot.cli.arguments import InJson
from sandlot.cli.output import as_json, note, size, table

if TYPE_CHECKING:
    from sandlot.core.access.api_keys import ApiKeys
    from sandlot.model.access import Quota
    from sandlot.model.records import KeyRecord
    from sandlot.sdk import Client, KeyInfo, NewKey

_Result = TypeVar("_Result")

keys = typer.Typer(help="Keys for the service on TCP.", no_args_is_help=True)

_SIZES = "memory_bytes", "disk_bytes", "upload_bytes", "snapshot_bytes", "volume_bytes"


@keys.command("create")
def create_key(  # noqa: PLR0913 - each is an option
    *,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call it.")],
    operator: Annotated[bool, typer.Option("--operator", help="It sees everybody's sandboxes, and may make and revoke keys.")] = False,
    max_sandboxes: Annotated[
        int | None, typer.Option("--max-sandboxes", metavar="N", min=-1, help="Live ones at once; -1 is no bound. (default: 50; of an operator -1)")
    ] = None,
    max_lifetime: Annotated[
        float | None, typer.Option("--max-lifetime", metavar="SECONDS", min=0, help="The longest timeout of a sandbox; none is persistent then.")
    ] = None,
    max_cpus: Annotated[float | None, typer.Option("--max-cpus", metavar="N", min=0, help="Cores of all live sandboxes together.")] = None,
    max_memory: Annotated[str | None, typer.Option("--max-memory", metavar="SIZE", help="Memory of all live sandboxes together, such as 8G.")] = None,
    max_disk: Annotated[str | None, typer.Option("--max-disk", metavar="SIZE", help="Disk of all live sandboxes together.")] = None,
    max_upload: Annotated[str | None, typer.Option("--max-upload", metavar="SIZE", help="One upload.")] = None,
    max_executions: Annotated[
        int | None, typer.Option("--max-executions", metavar="N", min=0, help="Runs of code and commands in a month (UTC).")
    ] = None,
    max_snapshots: Annotated[int | None, typer.Option("--max-snapshots", metavar="N", min=0, help="Snapshots that are kept.")] = None,
    max_snapshot_size: Annotated[
        str | None, typer.Option("--max-snapshot-size", metavar="SIZE", help="What they take on the disk together, such as 20G.")
    ] = None,
    max_volumes: Annotated[int | None, typer.Option("--max-volumes", metavar="N", min=0, help="Volumes that it has.")] = None,
    max_volume_size: Annotated[
        str | None, typer.Option("--max-volume-size", metavar="SIZE", help="What may be written to them together, such as 20G.")
    ] = None,
    max_pools: Annotated[
        int | None, typer.Option("--max-pools", metavar="N", min=-1, help="Pools of its own; -1 is no bound. (default: 4; of an operator -1)")
    ] = None,
    max_network: Annotated[
        str | None, typer.Option("--max-network", metavar="MODE", help="The most open network mode of its sandboxes: none or packages.")
    ] = None,
    installs: Annotated[
        bool, typer.Option("--installs/--no-installs", help="Whether installing opens the package indexes to a sandbox without network.")
    ] = True,
    in_json: InJson = False,
) -> None:
    """Make a key; it is shown once, alone on the last line of standard output."""
    from sandlot.model.access import Quota
    from sandlot.model.network import NetworkMode
    from sandlot.sdk.requests import parse_size

    if max_network is not None and max_network not in list(NetworkMode):
        raise typer.BadParameter(f"No network mode is called {max_network!r}: give none or packages.")
    sandboxes = (None if operator else Quota().sandboxes) if max_sandboxes is None else max_sandboxes
    pools = (None if operator else Quota().pools) if max_pools is None else max_pools
    quota = Quota(
        sandboxes=None if sandboxes == -1 else sandboxes,
        lifetime_s=max_lifetime,
        cpus=max_cpus,
        memory_bytes=None if max_memory is None else parse_size(max_memory),
        disk_bytes=None if max_disk is None else parse_size(max_disk),
        upload_bytes=None if max_upload is None else parse_size(max_upload),
        executions_per_month=max_executions,
        snapshots=max_snapshots,
        snapshot_bytes=None if max_snapshot_size is None else parse_size(max_snapshot_size),
        volumes=max_volumes,
        volume_bytes=None if max_volume_size is None else parse_size(max_volume_size),
        pools=None if pools == -1 else pools,
        network=None if max_network is None else NetworkMode(max_network),
        installs=installs,
    )

    async def directly(known: ApiKeys) -> NewKey:
        from sandlot.sdk import NewKey

        record, secret = await known.create(name, operator=operator, quota=quota)
        return NewKey(id=record.id, name=record.name, operator=record.operator, quota=record.quota, created_at=record.created_at, key=secret)

    made = _done(lambda client: client.keys.create(name, operator=operator, quota=quota), directly)
    if not in_json:
        note(f"The key {made.name!r} has the id {made.id}. It is shown this once; send it as SANDLOT_API_KEY.")
    typer.echo(as_json(made) if in_json else made.key)


@keys.command("list")
def list_keys(*, in_json: InJson = False) -> None:
    """List the keys that are valid, without their secrets."""

    async def directly(known: ApiKeys) -> list[KeyInfo]:
        return [_info(record) for record in await known.list()]

    found = _done(lambda client: client.keys.list(), directly)
    if in_json:
        typer.echo(as_json(found))
    elif found:
        rows = [
            [key.id, key.name, "yes" if key.operator else "no", key.created_at.isoformat(timespec="seconds"), _spelled(key.quota)] for key in found
        ]
        table(["ID", "NAME", "OPERATOR", "CREATED", "QUOTA"], rows)
    else:
        note("There is no key; `sandlot keys create --name NAME` makes one.")


@keys.command("revoke")
def revoke_key(*, key: Annotated[str, typer.Argument(metavar="NAME|ID", help="The key.")], in_json: InJson = False) -> None:
    """Take a key away; what uses it is refused from now on. Its sandboxes live on until they end, its pools go."""

    async def directly(known: ApiKeys) -> str:
        return (await known.revoke(key)).id

    def by_api(client: Client) -> str:
        found = client.keys.list()
        chosen = next((each for each in found if each.id == key), next((each for each in found if each.name == key), None))
        client.keys.revoke(key if chosen is None else chosen.id)
        return key if chosen is None else chosen.id

    id_ = _done(by_api, directly)
    typer.echo(as_json({"revoked": id_}) if in_json else id_)


def _done(by_api: Callable[[Client], _Result], directly: Callable[[ApiKeys], Awaitable[_Result]]) -> _Result:
    """Do something with the keys: by the service that runs, or on the store where none does."""
    from sandlot.sdk import Client, local_service

    with Client(autostart=False) as client:
        target = client.target
        if target.local is None or (target.socket is not None and local_service.answers(target.socket)):
            return by_api(client)
    import asyncio

    from sandlot.server.offline_keys import with_keys
    from sandlot.server.settings import Settings

    return asyncio.run(with_keys(Settings.from_env(), directly))


def _info(record: KeyRecord) -> KeyInfo:
    from sandlot.sdk import KeyInfo

    return KeyInfo(id=record.id, name=record.name, operator=record.operator, quota=record.quota, created_at=record.created_at)


def _spelled(quota: Quota) -> str:
    """What is bounded, as words that awk(1) can take apart: ``sandboxes=50,memory=8G``."""
    bounds = {each.name: getattr(quota, each.name) for each in fields(quota)}
    words = [
        f"{name.removesuffix('_bytes').removesuffix('_s')}={size(bound) if name in _SIZES else f'{bound:g}' if isinstance(bound, float) else bound}"
        for name, bound in bounds.items()
        if bound is not None and bound is not True
    ]
    return ",".join(words) or "-"
