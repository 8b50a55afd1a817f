"""``sandlot usage`` and ``limit``: what a sandbox uses, and what it may use."""

from __future__ import annotations

from typing import Annotated

import typer

from sandlot.cli.options import InJson, SandboxId, asking
from sandlot.cli.output import as_json, size, table


def usage(
    *,
    sandbox: SandboxId,
    in_json: InJson = False,
) -> None:
    """Tell what a sandbox has used, beside what it may use."""
    from sandlot.sdk import Sandbox

    with asking() as client:
        used = Sandbox.connect(sandbox, client=client, resume=False).usage()
    if in_json:
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
    ]
    table(["WHAT", "USED", "LIMIT"], rows)


def limit(
    *,
    sandbox: SandboxId,
    cpus: Annotated[float | None, typer.Option("--cpus", metavar="N", help="Cores.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", metavar="SIZE", help="Such as 512M or 2G.")] = None,
    disk: Annotated[str | None, typer.Option("--disk", metavar="SIZE", help="What may be written; refused where a driver cannot change it.")] = None,
    pids: Annotated[int | None, typer.Option("--pids", metavar="N", help="Processes and threads.")] = None,
    in_json: InJson = False,
) -> None:
    """Change what a sandbox may use while it runs.

    All of what is given, or nothing; what is left out stays.
    """
    if cpus is None and memory is None and disk is None and pids is None:
        raise typer.BadParameter("Nothing to change: give --cpus, --memory, --disk or --pids.")
    from sandlot.sdk import Sandbox

    with asking() as client:
        limits = Sandbox.connect(sandbox, client=client, resume=False).update(cpus=cpus, memory=memory, disk=disk, pids=pids).limits
    if in_json:
        typer.echo(as_json(limits))
    else:
        table(["CPUS", "MEMORY", "DISK", "PIDS"], [[f"{limits.cpus:g}", size(limits.memory_bytes), size(limits.disk_bytes), str(limits.pids)]])
