"""``sandlot key``: create, list, change and revoke API keys.

If a service is running, the commands use its API; otherwise they open its store. Both have the same keys.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from sandlot.cli.options import JsonOutput, Quiet, When, parse_size_bytes, parse_when, query_client
from sandlot.cli.output import as_json, note, print_ids, size, table

if TYPE_CHECKING:
    from sandlot.core.access.api_keys import ApiKeys
    from sandlot.model.records import KeyRecord
    from sandlot.sdk import Client, KeyInfo, NewKey, Quota

_Result = TypeVar("_Result")

keys = typer.Typer(help="Create, list, change and revoke API keys.", no_args_is_help=True)

_SIZES = (
    *("memory_bytes", "disk_bytes", "upload_bytes", "stored_execution_bytes"),
    *("stored_file_bytes", "snapshot_bytes", "volume_bytes", "template_bytes"),
)


def parse_quota_size(text: str) -> int:
    """Parse a size, or -1 for no limit."""
    return -1 if text == "-1" else parse_size_bytes(text)


KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Id or name of the key.")]
Expires = Annotated[
    When | None,
    typer.Option(
        "--expires", metavar="WHEN", help="Expiry of the key: an ISO 8601 time, a period from now such as 30d, or never.", parser=parse_when
    ),
]
MaxSandboxes = Annotated[
    int | None, typer.Option("--max-sandboxes", metavar="N", min=-1, help="Number of live sandboxes; -1 for no limit, as in all quota options.")
]
MaxLifetime = Annotated[
    float | None,
    typer.Option("--max-lifetime", metavar="SECONDS", min=-1, help="Longest timeout of a sandbox; persistent sandboxes are refused then."),
]
MaxCpus = Annotated[float | None, typer.Option("--max-cpus", metavar="N", min=-1, help="CPU cores of all live sandboxes together.")]
MaxMemory = Annotated[
    int | None,
    typer.Option("--max-memory", metavar="SIZE", help="Memory of all live sandboxes together, such as 8G.", parser=parse_quota_size),
]
MaxDisk = Annotated[
    int | None, typer.Option("--max-disk", metavar="SIZE", help="Disk space of all live sandboxes together.", parser=parse_quota_size)
]
MaxUpload = Annotated[int | None, typer.Option("--max-upload", metavar="SIZE", help="Size of an uploaded file.", parser=parse_quota_size)]
MaxExecutions = Annotated[int | None, typer.Option("--max-executions", metavar="N", min=-1, help="Code and command runs per calendar month (UTC).")]
MaxStoredExecutions = Annotated[
    int | None, typer.Option("--max-stored-executions", metavar="N", min=-1, help="Entries of the execution log; older entries are removed.")
]
MaxStoredExecutionSize = Annotated[
    int | None,
    typer.Option(
        "--max-stored-execution-size", metavar="SIZE", help="Size of these entries together; older entries are removed.", parser=parse_quota_size
    ),
]
MaxStoredFiles = Annotated[int | None, typer.Option("--max-stored-files", metavar="N", min=-1, help="Number of files in the file store.")]
MaxStoredFileSize = Annotated[
    int | None, typer.Option("--max-stored-file-size", metavar="SIZE", help="Size of these files together.", parser=parse_quota_size)
]
MaxHibernated = Annotated[int | None, typer.Option("--max-hibernated", metavar="N", min=-1, help="Number of hibernated sandboxes.")]
MaxSnapshots = Annotated[int | None, typer.Option("--max-snapshots", metavar="N", min=-1, help="Number of snapshots.")]
MaxSnapshotSize = Annotated[
    int | None, typer.Option("--max-snapshot-size", metavar="SIZE", help="Disk space of all snapshots together.", parser=parse_quota_size)
]
MaxVolumes = Annotated[int | None, typer.Option("--max-volumes", metavar="N", min=-1, help="Number of volumes.")]
MaxVolumeSize = Annotated[
    int | None, typer.Option("--max-volume-size", metavar="SIZE", help="Sum of the sizes of all volumes.", parser=parse_quota_size)
]
MaxTemplates = Annotated[int | None, typer.Option("--max-templates", metavar="N", min=-1, help="Number of templates.")]
MaxTemplateSize = Annotated[
    int | None, typer.Option("--max-template-size", metavar="SIZE", help="Size of all builds of templates together.", parser=parse_quota_size)
]
MaxPools = Annotated[int | None, typer.Option("--max-pools", metavar="N", min=-1, help="Number of private pools.")]
MaxNetwork = Annotated[
    str | None, typer.Option("--max-network", metavar="MODE", help="Most open network mode of a sandbox: none, packages, allowlist or internet.")
]
Installs = Annotated[
    bool | None, typer.Option("--installs/--no-installs", help="Open the package indexes to a sandbox without network during an install.")
]
PublicPorts = Annotated[
    bool | None, typer.Option("--public-ports/--no-public-ports", help="Allow sandboxes with public ports, whose preview URLs need no token.")
]


@keys.command("create")
def create(  # noqa: PLR0913 - each is an option
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key; up to 63 letters, digits, '.', '_' and '-'.")],
    operator: Annotated[bool, typer.Option("--operator", help="Let the key use the resources of all owners and manage keys.")] = False,
    expires: Expires = None,
    e2b: Annotated[bool, typer.Option("--e2b", help="Create a key in the form that old E2B clients require.")] = False,
    max_sandboxes: MaxSandboxes = None,
    max_lifetime: MaxLifetime = None,
    max_cpus: MaxCpus = None,
    max_memory: MaxMemory = None,
    max_disk: MaxDisk = None,
    max_upload: MaxUpload = None,
    max_executions: MaxExecutions = None,
    max_stored_executions: MaxStoredExecutions = None,
    max_stored_execution_size: MaxStoredExecutionSize = None,
    max_stored_files: MaxStoredFiles = None,
    max_stored_file_size: MaxStoredFileSize = None,
    max_hibernated: MaxHibernated = None,
    max_snapshots: MaxSnapshots = None,
    max_snapshot_size: MaxSnapshotSize = None,
    max_volumes: MaxVolumes = None,
    max_volume_size: MaxVolumeSize = None,
    max_templates: MaxTemplates = None,
    max_template_size: MaxTemplateSize = None,
    max_pools: MaxPools = None,
    max_network: MaxNetwork = None,
    installs: Installs = None,
    public_ports: PublicPorts = None,
    json_output: JsonOutput = False,
) -> None:
    """Create an API key and print it once, alone on the last line (`--operator`, quota options, `--expires WHEN`, `--e2b`).

    docs/how-to/keys-and-quotas.md lists the default quota. An operator has no limit.
    """
    from sandlot.model.access import UNBOUNDED, KeyFormat
    from sandlot.sdk import Quota

    quota = _with_limits(
        UNBOUNDED if operator else Quota(),
        sandboxes=max_sandboxes,
        lifetime_s=max_lifetime,
        cpus=max_cpus,
        memory_bytes=max_memory,
        disk_bytes=max_disk,
        upload_bytes=max_upload,
        executions_per_month=max_executions,
        stored_executions=max_stored_executions,
        stored_execution_bytes=max_stored_execution_size,
        stored_files=max_stored_files,
        stored_file_bytes=max_stored_file_size,
        hibernated_sandboxes=max_hibernated,
        snapshots=max_snapshots,
        snapshot_bytes=max_snapshot_size,
        volumes=max_volumes,
        volume_bytes=max_volume_size,
        templates=max_templates,
        template_bytes=max_template_size,
        pools=max_pools,
        network=max_network,
        installs=installs,
        public_ports=public_ports,
    )
    expires_at = None if expires is None else expires.at
    format_ = KeyFormat.E2B if e2b else KeyFormat.SANDLOT

    async def in_store(store: ApiKeys) -> NewKey:
        from sandlot.sdk import NewKey

        record, secret = await store.create(name, operator=operator, quota=quota, expires_at=expires_at, format=format_)
        return NewKey(record.id, record.name, record.operator, record.quota, record.created_at, record.expires_at, key=secret)

    created = _apply(lambda client: client.keys.create(name, operator=operator, quota=quota, expires_at=expires_at, format=format_.value), in_store)
    if not json_output:
        note(f"sandlot: created the key {created.name!r} with the id {created.id}; its secret is not printed again")
    typer.echo(as_json(created) if json_output else created.key)


@keys.command("update")
def update(  # noqa: PLR0913 - each is an option
    *,
    key: KeyId,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="New name.")] = None,
    expires: Expires = None,
    max_sandboxes: MaxSandboxes = None,
    max_lifetime: MaxLifetime = None,
    max_cpus: MaxCpus = None,
    max_memory: MaxMemory = None,
    max_disk: MaxDisk = None,
    max_upload: MaxUpload = None,
    max_executions: MaxExecutions = None,
    max_stored_executions: MaxStoredExecutions = None,
    max_stored_execution_size: MaxStoredExecutionSize = None,
    max_stored_files: MaxStoredFiles = None,
    max_stored_file_size: MaxStoredFileSize = None,
    max_hibernated: MaxHibernated = None,
    max_snapshots: MaxSnapshots = None,
    max_snapshot_size: MaxSnapshotSize = None,
    max_volumes: MaxVolumes = None,
    max_volume_size: MaxVolumeSize = None,
    max_templates: MaxTemplates = None,
    max_template_size: MaxTemplateSize = None,
    max_pools: MaxPools = None,
    max_network: MaxNetwork = None,
    installs: Installs = None,
    public_ports: PublicPorts = None,
    json_output: JsonOutput = False,
) -> None:
    """Change a key's name, quota or expiry.

    Prints its id.
    """

    def changed_quota(quota: Quota) -> Quota | None:
        changed = _with_limits(
            quota,
            sandboxes=max_sandboxes,
            lifetime_s=max_lifetime,
            cpus=max_cpus,
            memory_bytes=max_memory,
            disk_bytes=max_disk,
            upload_bytes=max_upload,
            executions_per_month=max_executions,
            stored_executions=max_stored_executions,
            stored_execution_bytes=max_stored_execution_size,
            stored_files=max_stored_files,
            stored_file_bytes=max_stored_file_size,
            hibernated_sandboxes=max_hibernated,
            snapshots=max_snapshots,
            snapshot_bytes=max_snapshot_size,
            volumes=max_volumes,
            volume_bytes=max_volume_size,
            templates=max_templates,
            template_bytes=max_template_size,
            pools=max_pools,
            network=max_network,
            installs=installs,
            public_ports=public_ports,
        )
        return None if changed == quota else changed

    async def in_store(store: ApiKeys) -> KeyInfo:
        from sandlot.model.records import KeyChange

        found = await store.get(key)
        expires_at = None if expires is None else expires.at
        removes_expiry = expires is not None and expires.at is None
        return _info(await store.update(found.id, KeyChange(name, changed_quota(found.quota), expires_at, removes_expiry=removes_expiry)))

    def by_api(client: Client) -> KeyInfo:
        found = client.keys.get(key)
        expires_at: datetime | Literal["never"] | None = None if expires is None else expires.at or "never"
        return client.keys.update(found.id, name=name, quota=changed_quota(found.quota), expires_at=expires_at)

    updated = _apply(by_api, in_store)
    typer.echo(as_json(updated) if json_output else updated.id)


@keys.command("ls")
def ls(*, quiet: Quiet = False, json_output: JsonOutput = False) -> None:
    """List valid API keys without their secrets."""

    async def in_store(store: ApiKeys) -> list[KeyInfo]:
        return [_info(record) for record in await store.list()]

    found = _apply(lambda client: client.keys.list(), in_store)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        rows = [
            [key.id, key.name, "yes" if key.operator else "no", _time(key.created_at), _time(key.expires_at), _limits_text(key.quota)]
            for key in found
        ]
        table(["ID", "NAME", "OPERATOR", "CREATED", "EXPIRES", "QUOTA"], rows)
    else:
        note("No keys. Create one with `sandlot key create NAME`.")


@keys.command("rm")
def rm(*, key: KeyId) -> None:
    """Revoke an API key and close its open connections.

    Its sandboxes run until they end; its pools are deleted. Prints the id of the key.
    """

    async def in_store(store: ApiKeys) -> str:
        return (await store.revoke(key)).id

    def by_api(client: Client) -> str:
        found = client.keys.get(key)
        client.keys.delete(found.id)
        return found.id

    typer.echo(_apply(by_api, in_store))


@keys.command("whoami")
def whoami(*, json_output: JsonOutput = False) -> None:
    """Show the key in use, its quota and what is used of it."""
    with query_client() as client:
        current = client.keys.get_current()
    if json_output:
        typer.echo(as_json(current))
        return
    table(
        ["FIELD", "VALUE"],
        [
            ["id", current.id],
            ["name", current.name],
            ["operator", "yes" if current.operator else "no"],
            ["expires", _time(current.expires_at)],
        ],
    )
    used = asdict(current.used)
    typer.echo()
    rows = [
        [each.name, _amount(each.name, used[each.name]) if each.name in used else "-", _amount(each.name, getattr(current.quota, each.name))]
        for each in fields(current.quota)
    ]
    table(["QUOTA", "USED", "LIMIT"], rows)


def _apply(by_api: Callable[[Client], _Result], in_store: Callable[[ApiKeys], Awaitable[_Result]]) -> _Result:
    """Do an operation through the running service, or in its store if none is running."""
    from sandlot.sdk import Client, LocalService

    with Client(autostart=False) as client:
        target = client.target
        if target.local is None or LocalService(target.local).is_running():
            return by_api(client)
    import asyncio

    from sandlot.server.offline_keys import with_keys
    from sandlot.server.settings import Settings

    return asyncio.run(with_keys(Settings.load(), in_store))


def _info(record: KeyRecord) -> KeyInfo:
    from sandlot.sdk import KeyInfo

    return KeyInfo(record.id, record.name, record.operator, record.quota, record.created_at, record.expires_at)


def _time(at: datetime | None) -> str:
    return "never" if at is None else at.isoformat(timespec="seconds")


def _with_limits(quota: Quota, **limits: float | str | None) -> Quota:
    """Return a copy of a quota with new limits. None: no change; -1: no limit."""
    from sandlot.sdk import NetworkMode

    network = limits["network"]
    if network is not None and network not in list(NetworkMode):
        raise typer.BadParameter(f"{network!r} is not a network mode. Pass {', '.join(NetworkMode)}.", param_hint="--max-network")
    changed: dict[str, Any] = {name: None if value == -1 else value for name, value in limits.items() if value is not None}
    return replace(quota, **changed if network is None else changed | {"network": NetworkMode(network)})


def _limits_text(quota: Quota) -> str:
    """Return the limits of a quota in one word for awk(1): ``sandboxes=50,memory=8G``."""
    limits = {each.name: getattr(quota, each.name) for each in fields(quota)}
    words = [
        f"{name.removesuffix('_bytes').removesuffix('_s')}={_amount(name, limit)}"
        for name, limit in limits.items()
        if limit is not None and limit is not True
    ]
    return ",".join(words) or "-"


def _amount(name: str, value: Any) -> str:  # noqa: ANN401 - a field of Quota or QuotaUsage
    if value is None:
        return "no limit"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return size(value) if name in _SIZES else f"{value:g}" if isinstance(value, float) else str(value)
