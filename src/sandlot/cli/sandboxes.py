"""``sandlot create``, ``ls``, ``info`` and ``rm``."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.output import age, announce_build, as_json, note, pairs, plain, size, table

if TYPE_CHECKING:
    from sandlot.sdk import Client, SandboxInfo


def create(  # noqa: PLR0913 - one for each option
    *,
    template: Annotated[str | None, typer.Option("--template", "-t", metavar="NAME", help="What it starts from. (default: code-interpreter)")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="End it after that long. (default: 300)")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Environment of everything in it; may be given again.")] = None,
    metadata: Annotated[list[str] | None, typer.Option("--metadata", "-m", metavar="K=V", help="Words kept with it; may be given again.")] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="A name for people.")] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="Cores. (default: 1)")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Such as 512M or 2G. (default: 1G)")] = None,
    disk: Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="What may be written. (default: 5G)")] = None,
    pids: Annotated[int | None, typer.Option("--pids", metavar="N", help="Processes and threads. (default: 512)")] = None,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="DRIVER", help="(default: auto)")] = None,
    network: Annotated[str | None, typer.Option("--network", metavar="POLICY", help="What it may reach. (default: none)")] = None,
    in_json: Annotated[bool, typer.Option("--json", help="Print everything about it, as JSON.")] = False,
) -> None:
    """Make a sandbox and print its id."""
    import anyio

    options: dict[str, Any] = {
        "timeout": timeout,
        "envs": pairs(env, "--env"),
        "metadata": pairs(metadata, "--metadata"),
        "name": name,
        "cpus": cpus,
        "memory": memory,
        "disk": disk,
        "pids": pids,
        "isolation": isolation,
        "network": network,
    }
    anyio.run(partial(_create, template, options, in_json=in_json))


def ls(
    *,
    in_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The ids only.")] = False,
) -> None:
    """List the sandboxes that live."""
    found = _live()
    if in_json:
        typer.echo(json.dumps([plain(info) for info in found], indent=2))
    elif quiet:
        for info in found:
            typer.echo(info.id)
    elif found:
        rows = [[info.id, info.name or "-", info.template, info.isolation, info.state, age(info.created_at), age(info.expires_at)] for info in found]
        table(["ID", "NAME", "TEMPLATE", "ISOLATION", "STATE", "AGE", "ENDS IN"], rows)
    else:
        note("No sandbox lives.")


def info(
    *,
    sandbox: Annotated[str, typer.Argument(metavar="ID", help="The sandbox; also one that ended, for a while.")],
    in_json: Annotated[bool, typer.Option("--json", help="Everything about it, as JSON.")] = False,
) -> None:
    """Look at a sandbox: what it was made from, what isolates it, what it may use."""
    with _client() as client:
        found = client.sandbox(sandbox)
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
        "isolation": found.isolation,
        "network": found.network,
        "cpus": f"{limits.cpus:g}",
        "memory": size(limits.memory_bytes),
        "disk": size(limits.disk_bytes),
        "pids": str(limits.pids),
        "age": age(found.created_at),
        "ends in": "" if found.exit_reason else age(found.expires_at),
        **{f"metadata {name}": value for name, value in found.metadata.items()},
    }
    table(["FACT", "VALUE"], [[name, value] for name, value in facts.items() if value])


def rm(
    *,
    sandboxes: Annotated[list[str] | None, typer.Argument(metavar="ID", help="The sandboxes.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every sandbox that lives.")] = False,
) -> None:
    """End sandboxes and remove every trace of them."""
    from sandlot.model.errors import SandlotError

    if bool(sandboxes) == everything:
        raise typer.BadParameter("Give the IDs of sandboxes, or --all.")
    doomed = [info.id for info in _live()] if everything else sandboxes or []
    failed = False
    with _client() as client:
        for sandbox in doomed:
            try:
                client.kill(sandbox)
            except SandlotError as error:
                note(f"sandlot: {sandbox}: {error}")
                failed = True
            else:
                typer.echo(sandbox)
    raise typer.Exit(1 if failed else 0)


async def _create(template: str | None, options: dict[str, Any], *, in_json: bool) -> None:
    from sandlot.sdk import AsyncClient, AsyncSandbox

    async with AsyncClient() as client:
        announce_build(await client.templates(), template)
        sandbox = await AsyncSandbox.create(template, client=client, **options)
        if in_json:
            typer.echo(as_json(await sandbox.info()))
        else:
            note(f"sandlot: isolated by {sandbox.isolation}")
            typer.echo(sandbox.id)


def _client() -> Client:
    """A client of the service that runs; a local one that does not is not started, because it would know of no sandbox."""
    from sandlot.sdk import Client

    return Client(autostart=False)


def _live() -> list[SandboxInfo]:
    """The sandboxes that live; none where no local service runs, which is not started to be asked."""
    from sandlot.sdk import local

    with _client() as client:
        target = client.target
        if target.local is not None and target.socket is not None and not local.answers(target.socket):
            return []
        return client.sandboxes()
