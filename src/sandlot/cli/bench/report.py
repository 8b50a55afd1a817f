"""Rows, samples and percentiles of a benchmark. Pure.

Invariants:
- The keys of the rows are stable, because programs read them (``docs/how-to/benchmark.md``).
- A row that could not be measured has the reason and no figures.
- Percentiles go towards the worse end: 95 of 100 values are at least as good as ``p95_ms``, also if more is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
"""Version of the JSON: raised when a field changes its meaning or is removed, not when a field is added."""

MS = "ms"
MORE_IS_BETTER = frozenset({"MB/s", "1/s"})


@dataclass(frozen=True, slots=True)
class RowKind:
    """Definition of a row.

    Args:
        what: Measured operation, for the table.
        yardstick: Native operation for comparison; None for none.
        unit: Unit of all figures of the row.
    """

    what: str
    yardstick: str | None
    unit: str = MS


ROWS: Mapping[str, RowKind] = {
    "noop": RowKind("a request that does nothing", "a handler of a few lines, same server, same client"),
    "stat": RowKind("files.stat('/workspace'), warm", "a handler of a few lines, same server, same client"),
    "create_cold": RowKind("create() of base that boots", "the client's python, -c 'print(1)', on the host"),
    "claim_run_code": RowKind("create() from a pool, and run_code('print(1)')", "the client's python, -c 'print(1)', on the host"),
    "claim_command": RowKind("create() from a pool, and commands.run('true')", "sh -c true on the host"),
    "tti_sequential": RowKind("create(), then 'node -v': one after the other", "node -v on the host"),
    "tti_staggered": RowKind("the same, one started every 200 ms", "node -v on the host"),
    "tti_burst": RowKind("the same, all at once", "node -v on the host, as many at once"),
    "restore_base": RowKind("create() of base with an empty pool, until code has run", "reading a file of the image's size"),
    "restore_code": RowKind("create() of code-interpreter with an empty pool, until code has run", "reading a file of the image's size"),
    "run_code": RowKind("run_code('print(1)'), warm", "exec() in a bare HTTP handler"),
    "command": RowKind("commands.run('true')", "sh -c true on the host"),
    "kernel_new": RowKind("contexts.create() and its first code", "the client's python, -c 'print(1)', on the host"),
    "pause_resume": RowKind("pause(), resume(), and run_code('print(1)')", "SIGSTOP, SIGCONT and exec() in a bare HTTP handler"),
    "snapshot": RowKind("snapshot() of a live sandbox with pandas", "writing a file of the image's size, synced"),
    "fork_1": RowKind("fork() of a live sandbox with pandas, until the fork has run code", "writing a file of the image's size, and reading it"),
    "fork_10": RowKind("fork(10) of the same, until all have run code", "writing a file of the image's size, and reading it ten times"),
    "fork_parent_stop": RowKind("longest pause of the parent during fork(), measured inside", "the same without a fork"),
    "hibernate": RowKind("hibernate() of a base sandbox", "writing a file of the image's size, synced"),
    "wake": RowKind("resume() of the same, until code has run", "reading a file of the image's size"),
    "install_pandas": RowKind("install('pandas') into base", "uv on the host, without its cache, into a fresh environment"),
    "upload_mb_s": RowKind("upload of a file into a sandbox", "upload to a bare HTTP handler", "MB/s"),
    "download_mb_s": RowKind("download of the same file", "download from a bare HTTP handler", "MB/s"),
    "creates_per_s": RowKind(
        "sandboxes created and ended, by four clients", "the client's python, -c 'print(1)', on the host, four at a time", "1/s"
    ),
    "idle_mib_base": RowKind("memory of an idle sandbox of base", "memory of an idle python3 on the host", "MiB"),
    "idle_mib_code": RowKind("memory of an idle sandbox of code-interpreter", "memory of an idle python3 on the host", "MiB"),
    "idle_cpu_pct": RowKind("CPU time of a paused sandbox, of one core", "CPU time of an idle python3 on the host", "%"),
}
"""All rows by key, in the order of the table."""


@dataclass(slots=True)
class Samples:
    """Samples of one row.

    Args:
        values: Values of the measured operation.
        native: Values of the native operation, measured in alternation.
        parts: Values of parts and variants by name.
        why: Reason if there are no values.
        failed: Number of failed attempts.
    """

    values: list[float] = field(default_factory=list)
    native: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    why: str | None = None
    failed: int = 0


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between the two nearest values.

    Args:
        values: At least one value.
        percent: 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def percentiles(values: Sequence[float], unit: str) -> dict[str, Any]:
    """Return ``p50_ms``, ``p95_ms`` and ``p99_ms``, None without values, and the number of values ``n``."""
    more = unit in MORE_IS_BETTER
    named = {
        f"p{percent}_ms": rounded(percentile(values, 100 - percent if more and percent != 50 else percent)) if values else None  # noqa: PLR2004
        for percent in (50, 95, 99)
    }
    return {**named, "n": len(values)}


def row(key: str, samples: Samples) -> dict[str, Any]:
    """Return a row of the report.

    Args:
        key: Key of the row.
        samples: Samples of the row.
    """
    kind = ROWS[key]
    figures = percentiles(samples.values, kind.unit)
    beside = rounded(percentile(samples.native, 50)) if samples.native else None
    made: dict[str, Any] = {**figures, "yardstick_ms": beside, "unit": kind.unit, "what": kind.what, "yardstick": kind.yardstick}
    if samples.parts:
        made["parts"] = {name: percentiles(values, kind.unit) for name, values in sorted(samples.parts.items()) if values}
    if samples.failed:
        made["failed"] = samples.failed
    if not samples.values:
        made["why"] = samples.why or "The row was not measured."
    return made


def rows(samples: Mapping[str, Samples]) -> dict[str, dict[str, Any]]:
    """Return all rows with samples, in the order of :data:`ROWS`."""
    return {key: row(key, samples[key]) for key in ROWS if key in samples}


def table(found: Mapping[str, Mapping[str, Any]]) -> Iterable[list[str]]:
    """Yield the cells of the table; the last cell of a row that was not measured has the reason."""
    for key, each in found.items():
        if each["n"]:
            beside = each["yardstick_ms"]
            native = [_short(beside), "-" if not beside or not each["p50_ms"] else _ratio(each["p50_ms"], beside, each["unit"])]
            yield [key, each["unit"], *(_short(each[f"p{percent}_ms"]) for percent in (50, 95, 99)), str(each["n"]), *native, each["what"]]
        else:
            yield [key, each["unit"], *["-"] * 6, each["why"]]
        for name, part in each.get("parts", {}).items():
            yield [f"  {name}", each["unit"], *(_short(part[f"p{percent}_ms"]) for percent in (50, 95, 99)), str(part["n"]), "-", "-", ""]


COLUMNS = ("ROW", "UNIT", "P50", "P95", "P99", "N", "YARDSTICK", "RATIO", "WHAT")


def rounded(value: float) -> float:
    """Round to four digits; more would be noise."""
    return float(f"{value:.4g}")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ratio(value: float, beside: float, unit: str) -> str:
    """Return the ratio to the native operation; above 1 is worse."""
    return f"{(beside / value if unit in MORE_IS_BETTER else value / beside):.3g}"
