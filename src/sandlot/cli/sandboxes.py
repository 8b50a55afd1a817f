"""``sandlot create``, ``ls``, ``info``, ``set-timeout`` and ``rm``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.options import InJson, Metadata, SandboxId, TemplateName, asking, live_ids, snapshot_names
from sandlot.cli.output import age, as_json, note, pairs, size, table
from sandlot.cli.volumes import mounts

if TYPE_CHECKING:
    from sandlot.sdk import SandboxInfo

NEVER = "never"


def create(  # noqa: PLR0913 - one for each option
    *,
    template: TemplateName = None,
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="SNAPSHOT", help="Start from this snapshot instead, by its id or name.", autocompletion=snapshot_names),
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="End it after that long. (default: 300)")] = None,
    on_timeout: Annotated[
        str | None, typer.Option("--on-timeout", metavar="WHAT", help="What its timeout does: kill, pause or hibernate. (default: kill)")
    ] = None,
    auto_resume: Annotated[
        bool | None, typer.Option("--auto-resume/--no-auto-resume", help="Whether a request resumes it while it rests. (default: it does)")
    ] = None,
    idle_timeout: Annotated[
        float | None, typer.Option("--idle-timeout", metavar="SECONDS", help="End it once it has done nothing for that long. (default: never)")
    ] = None,
    persistent: Annotated[bool, typer.Option("--persistent", help="Let it live until it is removed, without a timeout.")] = False,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment of everything in it; may be given again.")] = None,
    metadata: Metadata = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Name of the sandbox, unique among your live sandboxes.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="Cores. (default: 1)")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Such as 512M or 2G. (default: 1G)")] = None,
    disk: Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="What may be written. (default: 5G)")] = None,
    pids: Annotated[int | None, typer.Option("--pids", metavar="N", help="Processes and threads. (default: 512)")] = None,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="DRIVER", help="(default: auto)")] = None,
    network: Annotated[str | None, typer.Option("--network", metavar="MODE", help="What it may reach: packages or none. (default: packages)")] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file-id", metavar="FILE", help="Put this file of the file store into /workspace; may be given again.")
    ] = None,
    volumes: Annotated[
        list[str] | None,
        typer.Option("--volume", "-v", metavar="NAME:/PATH[:ro]", help="Give it this volume, as that folder; may be given again."),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", metavar="KEY", help="The same key gives the same sandbox, however often this is called.")
    ] = None,
    in_json: InJson = False,
) -> None:
    """Make a sandbox and print its id."""
    import anyio

    if persistent and timeout is not None:
        raise typer.BadParameter("A persistent sandbox has no timeout: give --persistent or --timeout.")
    if snapshot is not None and template is not None:
        raise typer.BadParameter("A snapshot has its template: give --snapshot or --template.")
    options: dict[str, Any] = {
        "timeout": timeout,
        "idle_timeout": idle_timeout,
        "persistent": persistent,
        "envs": pairs(env, "--env"),
        "metadata": pairs(metadata, "--metadata"),
        "name": name,
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "pids": pids,
        "isolation": isolation,
        "network": network,
        "file_ids": files or None,
        "snapshot": snapshot,
        "on_timeout": on_timeout,
        "auto_resume": auto_resume,
        "volumes": mounts(volumes),
        "idempotency_key": idempotency_key,
    }
    anyio.run(partial(_create, template, options, in_json=in_json))


def ls(
    *,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", metavar="STATE", help="Only those in this state, such as running; may be given again.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--metadata", "-m", metavar="K=V", help="Only those that have these words; may be given again.")
    ] = None,
    ended: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended, for as long as they are remembered.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="So many at most.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The ids only.")] = False,
    in_json: InJson = False,
) -> None:
    """List the sandboxes that live, oldest first."""
    found = _listed(state=state or None, metadata=pairs(metadata, "--metadata"), ended=ended, limit=limit)
    if in_json:
        typer.echo(as_json(found))
    elif quiet:
        for each in found:
            typer.echo(each.id)
    elif found:
        rows = [[each.id, each.name or "-", each.template, each.isolation, each.state, age(each.created_at), _ends_in(each)] for each in found]
        table(["ID", "NAME", "TEMPLATE", "ISOLATION", "STATE", "AGE", "ENDS IN"], rows)
    else:
        note("No sandbox like that." if state or metadata else "No sandbox lives.")


def info(*, sandbox: SandboxId, in_json: InJson = False) -> None:
    """Look at a sandbox: what it was made from, what isolates it, what it may use.

    Also at one that has ended, for as long as it is remembered.
    """
    with asking() as client:
        found = client.sandboxes.get(sandbox)
    if in_json:
        typer.echo(as_json(found))
        return
    limits = found.limits
    facts = {
        "id": found.id,
        "name": found.name,
        "state": found.state,
        "ended": " ".join(filter(None, (found.exit_reason, found.exit_detail and f"({found.exit_detail})"))),
        "template": found.template,
        "snapshot": found.snapshot or "",
        "parent": found.parent or "",
        "restored": found.restored or "",
        "isolation": found.isolation,
        "network": "" if found.network is None else found.network.mode,
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
        **{f"metadata {name}": value for name, value in found.metadata.items()},
    }
    table(["FACT", "VALUE"], [[name, value] for name, value in facts.items() if value])


def set_timeout(
    *,
    sandbox: SandboxId,
    timeout: Annotated[str, typer.Argument(metavar="SECONDS|never", help="From now; with 'never' it lives until it is removed.")],
    in_json: InJson = False,
) -> None:
    """Change when a sandbox ends."""
    from sandlot.sdk import Sandbox

    timeout_s = None if timeout == NEVER else _seconds(timeout)
    with asking() as client:
        found = Sandbox.connect(sandbox, client=client, resume=False).update(timeout=timeout_s, persistent=timeout_s is None or None)
    if in_json:
        typer.echo(as_json(found))
    else:
        table(["ID", "ENDS IN"], [[found.id, _ends_in(found)]])


def rm(
    *,
    sandboxes: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="The sandboxes.", autocompletion=live_ids)] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every sandbox that lives.")] = False,
) -> None:
    """End sandboxes and remove every trace of them.

    Prints the id of each. One that has ended already is no error.
    """
    from sandlot.model.errors import SandlotError

    if bool(sandboxes) == everything:
        raise typer.BadParameter("Give the IDs of sandboxes, or --all.")
    doomed = [each.id for each in _listed()] if everything else sandboxes or []
    failed = False
    with asking() as client:
        for sandbox in doomed:
            try:
                client.sandboxes.kill(sandbox)
            except SandlotError as error:
                note(f"sandlot: {sandbox}: {error}")
                failed = True
            else:
                typer.echo(sandbox)
    raise typer.Exit(1 if failed else 0)


async def _create(template: str | None, options: dict[str, Any], *, in_json: bool) -> None:
    from sandlot.cli.progress import building
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient() as client:
        if options["snapshot"] is None:
            async with building(client, template):
                sandbox = await AsyncSandbox.create(template, client=client, **options)
        else:
            sandbox = await AsyncSandbox.create(client=client, **options)
        if in_json:
            typer.echo(as_json(await sandbox.info()))
        else:
            note(f"sandlot: isolated by {sandbox.isolation}")
            typer.echo(sandbox.id)


def _listed(**wanted: Any) -> list[SandboxInfo]:  # noqa: ANN401 - Client.sandboxes has the names and types
    """Sandboxes; none where no local service runs and none can have been left by one."""
    from sandlot.sdk import LocalService

    with asking() as client:
        local = None if client.target.local is None else LocalService(client.target.local)
        if local is not None and not local.has_sandboxes() and not local.is_running():
            return []
        return client.sandboxes.list(**wanted)


def _ends_in(info: SandboxInfo) -> str:
    if info.exit_reason is not None or info.ended_at is not None:
        return "-"
    return NEVER if info.persistent else age(info.expires_at)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number of seconds nor 'never'.") from None
