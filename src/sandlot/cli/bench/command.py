"""``sandlot bench``: what things take, on this machine and through the SDK, each beside the nearest native thing.

Laws:
- It measures what a user gets: the SDK over HTTP, the service that is configured or the local one, nothing else of Sandlot's.
- Whatever it makes is gone in the end, also after an interrupt.
- The keys of the rows and the JSON are stable, and described in ``docs/how-to/benchmark.md``.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandlot.cli.output import as_json, note, table

if TYPE_CHECKING:
    from sandlot.cli.bench.plan import Step

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be measured.

    Args:
        isolation: Of the sandboxes; None is the service's default.
        only: Rows; None is all.
        quick: Whether few samples are enough.
    """

    isolation: str | None
    only: tuple[str, ...] | None
    quick: bool


def bench(
    *,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="NAME", help="Of the sandboxes. (default: the service's)")] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="ROW,ROW", help="These rows alone.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few samples: a minute instead of ten.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write it there as JSON; '-' prints that instead.")] = None,
) -> None:
    """Measure what things take through the SDK, each beside the nearest native thing.

    The rows are described in docs/how-to/benchmark.md. Sandboxes are created and removed; pools of the service are filled and emptied, and are what
    they were afterwards.
    """
    from sandlot.cli.bench import plan
    from sandlot.cli.bench.report import HEADS
    from sandlot.cli.bench.report import table as cells

    rows = None if only is None else tuple(word.strip() for word in only.split(",") if word.strip())
    try:
        chosen = plan.steps(rows)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if json_file is not None and str(json_file) != STDOUT and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"There is no folder {json_file.absolute().parent}.")
    try:
        report = asyncio.run(_measured(Wish(isolation, rows, quick), chosen))
    except asyncio.CancelledError as error:
        raise typer.Exit(128 + signal.SIGTERM) from error
    if json_file is not None and str(json_file) == STDOUT:
        typer.echo(as_json(report))
        return
    if json_file is not None:
        json_file.write_text(as_json(report) + "\n", encoding="utf-8")
    for line in _headlines(report):
        note(line)
    table(HEADS, list(cells(report["rows"])))


async def _measured(wish: Wish, chosen: tuple[Step, ...]) -> dict[str, Any]:
    """The report."""
    from sandlot.cli.bench import host, plan, pools
    from sandlot.cli.bench.baselines import Natives
    from sandlot.cli.bench.harness import Rig
    from sandlot.cli.bench.report import SCHEMA, rows
    from sandlot.cli.progress import Waiting
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import AsyncClient

    task = asyncio.current_task()
    if task is not None:  # what is ended by a signal leaves by the same way as an interrupt: it tidies up
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) ignores one
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    began = datetime.now(UTC)
    before = host.load()
    async with AsyncClient() as client, Natives(unix=client.target.socket is not None) as natives:
        about = await host.service(client)
        rig = Rig(client, natives, label=secrets.token_hex(6), isolation=wish.isolation, quick=wish.quick)
        try:
            with suppress(SandlotError):  # why there is no sandbox, each row tells
                await rig.isolated_by()
            with Waiting("measuring") as waiting:
                await plan.measure(rig, chosen, wish.only, waiting.at, pools.settled)
        finally:
            await rig.clean()
            await pools.all_restored(rig)
    return {
        "schema": SCHEMA,
        "at": began,
        "took_s": round((datetime.now(UTC) - began).total_seconds(), 1),
        "quick": wish.quick,
        "isolation": rig.found_isolation,
        "machine": {**host.machine(), "load_before": before, "load_after": host.load()},
        "service": about,
        "pool": rig.pool_report(),
        "images": rig.images,
        "rows": {key: row | {"made_by": rig.sources.get(key)} for key, row in rows(rig.samples).items()},
    }


def _headlines(report: dict[str, Any]) -> list[str]:
    """What stands above the table, for a person."""
    machine, service, pool = report["machine"], report["service"], report["pool"]
    runtime = service.get("runtimes", {}).get(report["isolation"], "")
    lines = [
        f"sandlot {service['version']}, {report['isolation'] or 'no sandbox'} {runtime}".rstrip(),
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_bytes'] >> 20} MiB, Linux {machine['kernel']}",
        f"load {machine['load_before'][0]} before, {machine['load_after'][0]} after",
    ]
    if pool["hit_rate"] is not None:
        made = ", ".join(f"{count} {source}" for source, count in pool["made_by"].items())
        lines.append(f"out of a pool: {pool['hit_rate']:.0%} of the creates that a pool was filled for ({made})")
    if report["images"]:
        lines.append("images: " + ", ".join(f"{name} {size / (1 << 20):.0f} MiB" for name, size in report["images"].items()))
    return lines
