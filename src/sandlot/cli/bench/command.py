"""``sandlot bench``: latency and throughput of operations through the SDK, each with a native operation as its baseline.

Invariants:
- The benchmark measures what a user gets: the SDK over HTTP, with the configured service or the local one.
- All sandboxes, snapshots and pools of a run are removed at its end, also after an interrupt.
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

from sandlot.cli.options import JsonOutput
from sandlot.cli.output import as_json, note, table

if TYPE_CHECKING:
    from sandlot.cli.bench.plan import Step


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """Options of a run.

    Args:
        isolation: Driver of the sandboxes; None for the service's default.
        only: Keys of the rows to measure; None for all.
        quick: Take few samples.
    """

    isolation: str | None
    only: tuple[str, ...] | None
    quick: bool


def bench(
    *,
    isolation: Annotated[str | None, typer.Option("--isolation", metavar="DRIVER", help="Driver of the sandboxes. (default: the service's)")] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="ROW,ROW", help="Measure only these rows.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Take few samples: one minute instead of ten.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the results as JSON to a file.")] = None,
    json_output: JsonOutput = False,
) -> None:
    """Measure latency and throughput and compare with native operations.

    docs/how-to/benchmark.md describes the rows. The run creates and removes sandboxes, and changes the service's pools and restores them.
    """
    from sandlot.cli.bench import plan
    from sandlot.cli.bench.report import COLUMNS
    from sandlot.cli.bench.report import table as cells

    rows = None if only is None else tuple(word.strip() for word in only.split(",") if word.strip())
    try:
        chosen = plan.steps(rows)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--only") from error
    if output is not None and not output.absolute().parent.is_dir():
        raise typer.BadParameter(f"{output.absolute().parent} is not a directory.", param_hint="--output")
    try:
        report = asyncio.run(_measure(BenchOptions(isolation, rows, quick), chosen))
    except asyncio.CancelledError as error:
        raise typer.Exit(128 + signal.SIGTERM) from error
    if output is not None:
        output.write_text(as_json(report) + "\n", encoding="utf-8")
    if json_output:
        typer.echo(as_json(report))
        return
    for line in _headlines(report):
        note(line)
    table(COLUMNS, list(cells(report["rows"])))


async def _measure(options: BenchOptions, chosen: tuple[Step, ...]) -> dict[str, Any]:
    """Measure the rows and return the report."""
    import uvicorn  # noqa: F401 - the child that serves HTTP for comparison could not say that it is missing

    from sandlot.cli.bench import host, plan, pools
    from sandlot.cli.bench.baselines import NativeBaselines
    from sandlot.cli.bench.harness import BenchHarness
    from sandlot.cli.bench.report import SCHEMA, rows
    from sandlot.cli.progress import Spinner
    from sandlot.sdk import AsyncClient, SandlotError

    task = asyncio.current_task()
    if task is not None:  # a signal cancels the run, which then cleans up
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) ignores one
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    began = datetime.now(UTC)
    before = host.load()
    async with AsyncClient() as client, NativeBaselines(unix=client.target.socket is not None) as baselines:
        about = await host.service(client)
        harness = BenchHarness(client, baselines, label=secrets.token_hex(6), isolation=options.isolation, quick=options.quick)
        try:
            with suppress(SandlotError):  # each row reports the error
                await harness.isolation_name()
            with Spinner("measuring") as spinner:
                await plan.measure(harness, chosen, options.only, spinner.show_step, pools.wait_until_idle)
        finally:
            await harness.clean()
            await pools.restore_all(harness)
    return {
        "schema": SCHEMA,
        "at": began,
        "took_s": round((datetime.now(UTC) - began).total_seconds(), 1),
        "quick": options.quick,
        "isolation": harness.found_isolation,
        "machine": {**host.machine(), "load_before": before, "load_after": host.load()},
        "service": about,
        "pool": harness.pool_report(),
        "images": harness.images,
        "rows": {key: row | {"made_by": harness.sources.get(key)} for key, row in rows(harness.samples).items()},
    }


def _headlines(report: dict[str, Any]) -> list[str]:
    """Return the lines above the table."""
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
