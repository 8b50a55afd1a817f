"""``sandlot create``, ``ls``, ``info``, ``update``, ``usage`` and ``rm``.

The SDK is imported inside the commands, so that ``--help`` and shell completion start quickly.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.bulk import run_for_each
from sandlot.cli.options import (
    NEVER,
    Allow,
    Deny,
    Env,
    JsonOutput,
    KeyValue,
    Limit,
    Metadata,
    NetworkMode,
    Packages,
    PublicPorts,
    Quiet,
    SandboxId,
    TemplateName,
    VolumeMount,
    as_dict,
    as_mounts,
    as_network,
    complete_sandboxes,
    complete_snapshots,
    parse_key_value,
    parse_size_bytes,
    parse_volume,
    query_client,
)
from sandlot.cli.output import age, as_json, note, print_ids, size, table

if TYPE_CHECKING:
    from sandlot.sdk import SandboxInfo


def create(  # noqa: PLR0913 - each is an option
    *,
    template: TemplateName = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            metavar="SNAPSHOT",
            help="Start from this snapshot, by its id or name, instead of a template.",
            autocompletion=complete_snapshots,
        ),
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Seconds until the timeout. (default: 300)")] = None,
    on_timeout: Annotated[
        str | None,
        typer.Option("--on-timeout", metavar="ACTION", help="Action at the timeout: kill, pause, hibernate or hibernate_files. (default: kill)"),
    ] = None,
    auto_resume: Annotated[
        bool | None,
        typer.Option("--auto-resume/--no-auto-resume", help="Resume a paused or hibernated sandbox at the next request. (default: --auto-resume)"),
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option("--idle-timeout", metavar="SECONDS", help="Seconds without activity until the action of --on-timeout. (default: no limit)"),
    ] = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Create a sandbox without a timeout; it runs until it is removed.")] = False,
    env: Env = None,
    metadata: Metadata = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name; unique among your live sandboxes.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="CPU cores. (default: 1)")] = None,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 512M or 2G. (default: 1G)", parser=parse_size_bytes)
    ] = None,
    disk: Annotated[
        int | None, typer.Option("--disk", metavar="SIZE", help="Limit of written files, such as 512M or 2G. (default: 5G)", parser=parse_size_bytes)
    ] = None,
    pids: Annotated[int | None, typer.Option("--pids", metavar="N", help="Maximum number of processes and threads. (default: 512)")] = None,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="DRIVER", help="Driver that isolates the sandbox. (default: auto)")] = None,
    network: NetworkMode = None,
    allow: Allow = None,
    deny: Deny = None,
    packages: Packages = None,
    file_ids: Annotated[
        list[str] | None,
        typer.Option("--file-id", metavar="ID", help="Copy this stored file into the working directory; repeat for more."),
    ] = None,
    volumes: Annotated[
        list[VolumeMount] | None,
        typer.Option("--volume", "-v", metavar="NAME:/PATH[:ro]", help="Mount a volume at a path; repeat for more.", parser=parse_volume),
    ] = None,
    cwd: Annotated[
        str | None, typer.Option("--cwd", "-w", metavar="PATH", help="Working directory, created if it does not exist. (default: /workspace)")
    ] = None,
    public_ports: PublicPorts = None,
    mask_request_host: Annotated[
        str | None,
        typer.Option(
            "--mask-request-host",
            metavar="HOST",
            help="Host header that programs see behind a preview URL, such as '${PORT}-app.example.com'. (default: localhost:PORT)",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="Key of this request; a repeated request returns the same sandbox.")
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Create a sandbox and print its id."""
    import anyio

    if persistent and timeout is not None:
        raise typer.BadParameter("It cannot be combined with --timeout.", param_hint="--persistent")
    if snapshot is not None and template is not None:
        raise typer.BadParameter("It cannot be combined with --template.", param_hint="--snapshot")
    options: dict[str, Any] = {
        "timeout": timeout,
        "idle_timeout": idle_timeout,
        "persistent": persistent,
        "envs": as_dict(env),
        "metadata": as_dict(metadata),
        "name": name,
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "pids": pids,
        "isolation": isolation,
        "network": as_network(network, allow, deny, packages=packages),
        "file_ids": file_ids or None,
        "snapshot": snapshot,
        "on_timeout": on_timeout,
        "auto_resume": auto_resume,
        "volumes": as_mounts(volumes),
        "cwd": cwd,
        "public_ports": bool(public_ports),
        "mask_request_host": mask_request_host,
        "idempotency_key": idempotency_key,
    }
    anyio.run(partial(_create, template, options, json_output=json_output))


def ls(
    *,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help="Only sandboxes in this state, such as running; repeat for more.")
    ] = None,
    metadata: Annotated[
        list[KeyValue] | None,
        typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="Only sandboxes with this metadata; repeat for more.", parser=parse_key_value),
    ] = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Include ended sandboxes that the service still has records of.")] = False,
    limit: Limit = None,
    quiet: Quiet = False,
    json_output: JsonOutput = False,
) -> None:
    """List live sandboxes, oldest first."""
    found = _list_sandboxes(state=state or None, metadata=as_dict(metadata), ended=ended, limit=limit)
    if json_output:
        typer.echo(as_json(found))
    elif quiet:
        print_ids(found)
    elif found:
        rows = [[each.id, each.name or "-", each.template, each.isolation, each.state, age(each.created_at), _ends_in(each)] for each in found]
        table(["ID", "NAME", "TEMPLATE", "ISOLATION", "STATE", "AGE", "ENDS IN"], rows)
    else:
        note("No matching sandboxes." if state or metadata else "No live sandboxes.")


def info(*, sandbox: SandboxId, json_output: JsonOutput = False) -> None:
    """Show a sandbox's template, isolation, limits and timeouts.

    Ended sandboxes are shown while the service has records of them.
    """
    with query_client() as client:
        found = client.sandboxes.get(sandbox)
    _print_info(found, json_output=json_output)


def update(  # noqa: PLR0913 - each is an option
    *,
    sandbox: SandboxId,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="Seconds from now until the timeout.")] = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Remove the timeout.")] = False,
    on_timeout: Annotated[
        str | None, typer.Option("--on-timeout", metavar="ACTION", help="Action at the timeout: kill, pause, hibernate or hibernate_files.")
    ] = None,
    auto_resume: Annotated[
        bool | None, typer.Option("--auto-resume/--no-auto-resume", help="Resume a paused or hibernated sandbox at the next request.")
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option("--idle-timeout", metavar="SECONDS", help="Seconds without activity until the action of --on-timeout; 0 for no limit."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name; unique among your live sandboxes.")] = None,
    metadata: Annotated[
        list[KeyValue] | None,
        typer.Option("--metadata", "-m", metavar="KEY=VALUE", help="New metadata; replaces all entries; repeat for more.", parser=parse_key_value),
    ] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="CPU cores.")] = None,
    memory: Annotated[int | None, typer.Option("--memory", metavar="SIZE", help="Memory limit, such as 512M or 2G.", parser=parse_size_bytes)] = None,
    disk: Annotated[
        int | None,
        typer.Option("--disk", metavar="SIZE", help="Limit of written files; an error if the driver cannot change it.", parser=parse_size_bytes),
    ] = None,
    pids: Annotated[int | None, typer.Option("--pids", metavar="N", help="Maximum number of processes and threads.")] = None,
    network: NetworkMode = None,
    allow: Allow = None,
    deny: Deny = None,
    packages: Packages = None,
    public_ports: PublicPorts = None,
    mask_request_host: Annotated[
        str | None,
        typer.Option("--mask-request-host", metavar="HOST", help="Host header that programs see behind a preview URL; '' for localhost:PORT."),
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Change properties of a sandbox; all changes apply, or none.

    --network, --allow and --deny replace the whole network policy.

    Prints the changed sandbox as `sandlot info` does.
    """
    from sandlot.sdk import Sandbox

    if persistent and timeout is not None:
        raise typer.BadParameter("It cannot be combined with --timeout.", param_hint="--persistent")
    changes: dict[str, Any] = {
        "timeout": timeout,
        "persistent": persistent or None,
        "on_timeout": on_timeout,
        "auto_resume": auto_resume,
        "idle_timeout": idle_timeout,
        "name": name,
        "metadata": as_dict(metadata) if metadata else None,
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "pids": pids,
        "network": as_network(network, allow, deny, packages=packages),
        "public_ports": public_ports,
        "mask_request_host": mask_request_host,
    }
    if all(value is None for value in changes.values()):
        raise typer.BadParameter("Nothing to change. Pass an option, such as --timeout.")
    with query_client() as client:
        changed = Sandbox.connect(sandbox, client=client, resume=False).update(**changes)
    _print_info(changed, json_output=json_output)


def usage(*, sandbox: SandboxId, json_output: JsonOutput = False) -> None:
    """Show CPU time, memory, disk, processes and network bytes used, with their limits."""
    from sandlot.sdk import Sandbox

    with query_client() as client:
        used = Sandbox.connect(sandbox, client=client, resume=False).usage()
    if json_output:
        typer.echo(as_json(used))
        return
    limits = used.limits
    rows = [
        ["cpu", f"{used.cpu_s:.1f}s", f"{limits.cpus:g} {'core' if limits.cpus == 1 else 'cores'}"],
        ["memory", size(used.memory_bytes), size(limits.memory_bytes)],
        ["memory peak", size(used.memory_peak_bytes), "-"],
        ["disk", size(used.disk_bytes), size(limits.disk_bytes)],
        ["pids", "-" if used.pids is None else str(used.pids), str(limits.pids)],
        ["host tasks", str(used.host_tasks), "-"],
        ["network sent", size(used.network_sent_bytes), "-"],
        ["network received", size(used.network_received_bytes), "-"],
    ]
    table(["RESOURCE", "USED", "LIMIT"], rows)


def rm(
    *,
    sandboxes: Annotated[
        list[str] | None, typer.Argument(metavar="SANDBOX", help="Ids or names of sandboxes.", autocompletion=complete_sandboxes)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="End all live sandboxes.")] = False,
) -> None:
    """End sandboxes and delete everything in them.

    Prints each ended sandbox as it was given. A sandbox that has ended already is no error. Exits with status 1 if any could not be ended.
    """
    if bool(sandboxes) == everything:
        raise typer.BadParameter("Pass sandboxes, or --all.")
    ids = [each.id for each in _list_sandboxes()] if everything else sandboxes or []
    with query_client() as client:
        run_for_each(ids, client.sandboxes.kill)


async def _create(template: str | None, options: dict[str, Any], *, json_output: bool) -> None:
    from sandlot.cli.progress import show_build
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient() as client:
        if options["snapshot"] is None:
            async with show_build(client, template):
                sandbox = await AsyncSandbox.create(template, client=client, **options)
        else:
            sandbox = await AsyncSandbox.create(client=client, **options)
        if json_output:
            typer.echo(as_json(await sandbox.info()))
        else:
            note(f"sandlot: isolated by {sandbox.isolation}")
            typer.echo(sandbox.id)


def _list_sandboxes(**filters: Any) -> list[SandboxInfo]:  # noqa: ANN401 - Client.sandboxes.list has the names and types
    """Return sandboxes; none if no local service runs and none left sandboxes behind."""
    from sandlot.sdk import LocalService

    with query_client() as client:
        local = None if client.target.local is None else LocalService(client.target.local)
        if local is not None and not local.has_sandboxes() and not local.is_running():
            return []
        return client.sandboxes.list(**filters)


def _print_info(found: SandboxInfo, *, json_output: bool) -> None:
    if json_output:
        typer.echo(as_json(found))
        return
    limits = found.limits
    details = {
        "id": found.id,
        "name": found.name,
        "state": found.state,
        "ended": " ".join(filter(None, (found.exit_reason, found.exit_detail and f"({found.exit_detail})"))),
        "fault": found.fault,
        "template": found.template,
        "snapshot": found.snapshot,
        "parent": found.parent,
        "restored": found.restored,
        "isolation": found.isolation,
        "network": "" if found.network is None else found.network.mode,
        "public ports": "yes" if found.public_ports else "",
        "masked host": found.mask_request_host,
        "working directory": found.cwd,
        "cpus": f"{limits.cpus:g}",
        "memory": size(limits.memory_bytes),
        "disk": size(limits.disk_bytes),
        "pids": str(limits.pids),
        "age": age(found.created_at),
        "ends in": "" if found.exit_reason else _ends_in(found),
        "on timeout": found.on_timeout,
        "auto resume": "yes" if found.auto_resume else "no",
        "idle timeout": "" if found.idle_timeout is None else f"{found.idle_timeout:g}s",
        "node": found.node,
        **{f"metadata {key}": value for key, value in found.metadata.items()},
    }
    table(["FIELD", "VALUE"], [[field, value] for field, value in details.items() if value])


def _ends_in(info: SandboxInfo) -> str:
    if info.exit_reason is not None or info.ended_at is not None:
        return "-"
    return NEVER if info.persistent else age(info.expires_at)
