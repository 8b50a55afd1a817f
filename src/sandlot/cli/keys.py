"""``sandlot keys``: create, list, update and revoke API keys.

If a service runs, its API is used; otherwise its store is opened. Both have the same keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sandlot.cli.options import InJson, parse_when
from sandlot.cli.output import as_json, note, size, table

if TYPE_CHECKING:
    from sandlot.core.access.api_keys import ApiKeys
    from sandlot.model.access import Quota
    from sandlot.model.records import KeyRecord
    from sandlot.sdk import Client, KeyInfo, NewKey

_Result = TypeVar("_Result")

keys = typer.Typer(help="Keys for the service on TCP.", no_args_is_help=True)

_SIZES = "memory_bytes", "disk_bytes", "upload_bytes", "snapshot_bytes", "volume_bytes"

_Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="WHEN", help="Expiry of the key: an ISO 8601 time, a period from now such as 30d, or never."),
]
_MaxSandboxes = Annotated[
    int | None, typer.Option("--max-sandboxes", metavar="N", min=-1, help="Live sandboxes; -1: no limit, as in all options that follow.")
]
_MaxLifetime = Annotated[
    float | None, typer.Option("--max-lifetime", metavar="SECONDS", min=-1, help="Timeout of a sandbox; persistent sandboxes are then refused.")
]
_MaxCpus = Annotated[float | None, typer.Option("--max-cpus", metavar="N", min=-1, help="CPU cores of all live sandboxes together.")]
_MaxMemory = Annotated[str | None, typer.Option("--max-memory", metavar="SIZE", help="Memory of all live sandboxes together, such as 8G.")]
_MaxDisk = Annotated[str | None, typer.Option("--max-disk", metavar="SIZE", help="Disk of all live sandboxes together.")]
_MaxUpload = Annotated[str | None, typer.Option("--max-upload", metavar="SIZE", help="Size of an uploaded file.")]
_MaxExecutions = Annotated[int | None, typer.Option("--max-executions", metavar="N", min=-1, help="Runs of code and commands in a month (UTC).")]
_MaxSnapshots = Annotated[int | None, typer.Option("--max-snapshots", metavar="N", min=-1, help="Number of snapshots.")]
_MaxSnapshotSize = Annotated[str | None, typer.Option("--max-snapshot-size", metavar="SIZE", help="Disk space of all snapshots together.")]
_MaxVolumes = Annotated[int | None, typer.Option("--max-volumes", metavar="N", min=-1, help="Number of volumes.")]
_MaxVolumeSize = Annotated[str | None, typer.Option("--max-volume-size", metavar="SIZE", help="Sum of the sizes of all volumes.")]
_MaxPools = Annotated[int | None, typer.Option("--max-pools", metavar="N", min=-1, help="Number of private pools.")]
_MaxNetwork = Annotated[str | None, typer.Option("--max-network", metavar="MODE", help="Most open network mode of a sandbox: none or packages.")]
_Installs = Annotated[
    bool | None, typer.Option("--installs/--no-installs", help="Open the package indexes to a sandbox without network during an install.")
]


@keys.command("create")
def create_key(  # noqa: PLR0913 - each is an option
    *,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the key.")],
    operator: Annotated[bool, typer.Option("--operator", help="Let the key see the objects of all owners and manage keys.")] = False,
    expires: _Expires = None,
    e2b: Annotated[bool, typer.Option("--e2b", help="Create a key of the form that old clients of E2B require.")] = False,
    max_sandboxes: _MaxSandboxes = None,
    max_lifetime: _MaxLifetime = None,
    max_cpus: _MaxCpus = None,
    max_memory: _MaxMemory = None,
    max_disk: _MaxDisk = None,
    max_upload: _MaxUpload = None,
    max_executions: _MaxExecutions = None,
    max_snapshots: _MaxSnapshots = None,
    max_snapshot_size: _MaxSnapshotSize = None,
    max_volumes: _MaxVolumes = None,
    max_volume_size: _MaxVolumeSize = None,
    max_pools: _MaxPools = None,
    max_network: _MaxNetwork = None,
    installs: _Installs = None,
    in_json: InJson = False,
) -> None:
    """Create an API key and print it once, alone on the last line. Without options: 50 live sandboxes and 4 pools; no limit for an operator."""
    from sandlot.model.access import UNBOUNDED, KeyFormat, Quota

    quota = _with_limits(
        UNBOUNDED if operator else Quota(),
        sandboxes=max_sandboxes,
        lifetime_s=max_lifetime,
        cpus=max_cpus,
        memory_bytes=max_memory,
        disk_bytes=max_disk,
        upload_bytes=max_upload,
        executions_per_month=max_executions,
        snapshots=max_snapshots,
        snapshot_bytes=max_snapshot_size,
        volumes=max_volumes,
        volume_bytes=max_volume_size,
        pools=max_pools,
        network=max_network,
        installs=installs,
    )
    when = None if expires is None else parse_when(expires)
    expires_at = None if when == "never" else when
    format_ = KeyFormat.E2B if e2b else KeyFormat.SANDLOT

    async def directly(known: ApiKeys) -> NewKey:
        from sandlot.sdk import NewKey

        record, secret = await known.create(name, operator=operator, quota=quota, expires_at=expires_at, format=format_)
        return NewKey(record.id, record.name, record.operator, record.quota, record.created_at, record.expires_at, key=secret)

    made = _done(lambda client: client.keys.create(name, operator=operator, quota=quota, expires_at=expires_at, format=format_.value), directly)
    if not in_json:
        note(f"The key {made.name!r} has the id {made.id}. It is shown this once; send it as SANDLOT_API_KEY.")
    typer.echo(as_json(made) if in_json else made.key)


@keys.command("update")
def update_key(  # noqa: PLR0913 - each is an option
    *,
    key: Annotated[str, typer.Argument(metavar="NAME|ID", help="The key.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="New name.")] = None,
    expires: _Expires = None,
    max_sandboxes: _MaxSandboxes = None,
    max_lifetime: _MaxLifetime = None,
    max_cpus: _MaxCpus = None,
    max_memory: _MaxMemory = None,
    max_disk: _MaxDisk = None,
    max_upload: _MaxUpload = None,
    max_executions: _MaxExecutions = None,
    max_snapshots: _MaxSnapshots = None,
    max_snapshot_size: _MaxSnapshotSize = None,
    max_volumes: _MaxVolumes = None,
    max_volume_size: _MaxVolumeSize = None,
    max_pools: _MaxPools = None,
    max_network: _MaxNetwork = None,
    installs: _Installs = None,
    in_json: InJson = False,
) -> None:
    """Change a key's name, quota or expiry, and print its id. What is not given stays as it is."""
    when = None if expires is None else parse_when(expires)

    def limited(quota: Quota) -> Quota | None:
        changed = _with_limits(
            quota,
            sandboxes=max_sandboxes,
            lifetime_s=max_lifetime,
            cpus=max_cpus,
            memory_bytes=max_memory,
            disk_bytes=max_disk,
            upload_bytes=max_upload,
            executions_per_month=max_executions,
            snapshots=max_snapshots,
            snapshot_bytes=max_snapshot_size,
            volumes=max_volumes,
            volume_bytes=max_volume_size,
            pools=max_pools,
            network=max_network,
            installs=installs,
        )
        return None if changed == quota else changed

    async def directly(known: ApiKeys) -> KeyInfo:
        from sandlot.model.records import KeyChange

        found = await known.get(key)
        expires_at = None if when == "never" else when
        return _info(await known.update(found.id, KeyChange(name, limited(found.quota), expires_at, removes_expiry=when == "never")))

    def by_api(client: Client) -> KeyInfo:
        found = client.keys.get(key)
        return client.keys.update(found.id, name=name, quota=limited(found.quota), expires_at=when)

    updated = _done(by_api, directly)
    typer.echo(as_json(updated) if in_json else updated.id)


@keys.command("list")
def list_keys(*, in_json: InJson = False) -> None:
    """List the keys that are not revoked, expired keys included, without their secrets."""

    async def directly(known: ApiKeys) -> list[KeyInfo]:
        return [_info(record) for record in await known.list()]

    found = _done(lambda client: client.keys.list(), directly)
    if in_json:
        typer.echo(as_json(found))
    elif found:
        rows = [
            [key.id, key.name, "yes" if key.operator else "no", _time(key.created_at), _time(key.expires_at), _spelled(key.quota)] for key in found
        ]
        table(["ID", "NAME", "OPERATOR", "CREATED", "EXPIRES", "QUOTA"], rows)
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
        client.keys.delete(key if chosen is None else chosen.id)
        return key if chosen is None else chosen.id

    id_ = _done(by_api, directly)
    typer.echo(as_json({"revoked": id_}) if in_json else id_)


def _done(by_api: Callable[[Client], _Result], directly: Callable[[ApiKeys], Awaitable[_Result]]) -> _Result:
    """Do something with the keys: by the service that runs, or on the store where none does."""
    from sandlot.sdk import Client, LocalService

    with Client(autostart=False) as client:
        target = client.target
        if target.local is None or LocalService(target.local).is_running():
            return by_api(client)
    import asyncio

    from sandlot.server.offline_keys import with_keys
    from sandlot.server.settings import Settings

    return asyncio.run(with_keys(Settings.load(), directly))


def _info(record: KeyRecord) -> KeyInfo:
    from sandlot.sdk import KeyInfo

    return KeyInfo(
        id=record.id,
        name=record.name,
        operator=record.operator,
        quota=record.quota,
        created_at=record.created_at,
        expires_at=record.expires_at,
    )


def _time(at: datetime | None) -> str:
    return "never" if at is None else at.isoformat(timespec="seconds")


def _with_limits(quota: Quota, **limits: float | str | None) -> Quota:
    """Return a copy of a quota with new limits. None: as it is; -1: no limit. Sizes are texts such as ``8G``."""
    from sandlot.model.network import NetworkMode
    from sandlot.sdk import parse_size

    network = limits["network"]
    if network is not None and network not in list(NetworkMode):
        raise typer.BadParameter(f"No network mode is called {network!r}: give none or packages.")
    changed: dict[str, Any] = {name: None if value in {-1, "-1"} else value for name, value in limits.items() if value is not None}
    for name in changed.keys() & {*_SIZES}:
        changed[name] = None if changed[name] is None else parse_size(changed[name])
    return replace(quota, **changed if network is None else changed | {"network": NetworkMode(network)})


def _spelled(quota: Quota) -> str:
    """What is bounded, as words that awk(1) can take apart: ``sandboxes=50,memory=8G``."""
    bounds = {each.name: getattr(quota, each.name) for each in fields(quota)}
    words = [
        f"{name.removesuffix('_bytes').removesuffix('_s')}={size(bound) if name in _SIZES else f'{bound:g}' if isinstance(bound, float) else bound}"
        for name, bound in bounds.items()
        if bound is not None and bound is not True
    ]
    return ",".join(words) or "-"
