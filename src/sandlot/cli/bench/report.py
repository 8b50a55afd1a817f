"""What a benchmark comes to: its rows, what was sampled for each, and the report for programs. Pure.

Laws:
- The keys of the rows are a promise: programs read them (``docs/how-to/benchmark.md``).
- A row that could not be measured says why, and holds no figure.
- Percentiles go towards the worse end: 95 of 100 were at least as good as ``p95_ms``, also where more is better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
"""Raised when something in the JSON changes its meaning or goes; what is added does not count."""

MS = "ms"
MORE_IS_BETTER = frozenset({"MB/s", "1/s"})


@dataclass(frozen=True, slots=True)
class Kind:
    """What a row measures.

    Args:
        what: In a few words, for the table.
        yardstick: The nearest native thing; None where there is none.
        unit: Of all figures of the row.
    """

    what: str
    yardstick: str | None
    unit: str = MS


KINDS: Mapping[str, Kind] = {
    "noop": Kind("a request that does nothing", "a handler of a few lines, same server, same client"),
    "stat": Kind("files.stat('/workspace'), warm", "a handler of a few lines, same server, same client"),
    "create_cold": Kind("create() of base where nothing was prepared", "the client's python, -c 'print(1)', on the host"),
    "claim_run_code": Kind("create() out of a pool, and run_code('print(1)')", "the client's python, -c 'print(1)', on the host"),
    "claim_command": Kind("create() out of a pool, and commands.run('true')", "sh -c true on the host"),
    "tti_sequential": Kind("create(), then 'node -v': one after the other", "node -v on the host"),
    "tti_staggered": Kind("the same, one begun every 200 ms", "node -v on the host"),
    "tti_burst": Kind("the same, all at once", "node -v on the host, as many at once"),
    "restore_base": Kind("create() of base with an empty pool, until code answers", "reading a file of the image's size"),
    "restore_code": Kind("create() of code-interpreter with an empty pool, until code answers", "reading a file of the image's size"),
    "run_code": Kind("run_code('print(1)'), warm", "exec() in a bare HTTP handler"),
    "command": Kind("commands.run('true')", "sh -c true on the host"),
    "kernel_new": Kind("contexts.create() and its first cell", "the client's python, -c 'print(1)', on the host"),
    "pause_resume": Kind("pause(), resume(), and run_code('print(1)')", "SIGSTOP, SIGCONT and exec() in a bare HTTP handler"),
    "snapshot": Kind("snapshot() of a live sandbox with pandas", "writing a file of the image's size, synced"),
    "fork_1": Kind("fork() of a live sandbox with pandas, until the child answers", "writing a file of the image's size, and reading it"),
    "fork_10": Kind("fork(10) of the same, until all answer", "writing a file of the image's size, and reading it ten times"),
    "fork_parent_stop": Kind("how long the parent of a fork stands still, seen from its inside", "the same without a fork"),
    "hibernate": Kind("hibernate() of a base sandbox", "writing a file of the image's size, synced"),
    "wake": Kind("wake() of the same, until code answers", "reading a file of the image's size"),
    "install_pandas": Kind("install('pandas') into base", "uv on the host, without its cache, into a fresh environment"),
    "upload_mb_s": Kind("a file into a sandbox", "into a file of the host, by a bare HTTP handler", "MB/s"),
    "download_mb_s": Kind("the same file back", "out of a file of the host, by a bare HTTP handler", "MB/s"),
    "creates_per_s": Kind("sandboxes made and removed, by four clients", "the client's python, -c 'print(1)', on the host, four at a time", "1/s"),
    "idle_mib_base": Kind("memory of an idle sandbox of base", "of an idle python3 on the host", "MiB"),
    "idle_mib_code": Kind("memory of an idle sandbox of code-interpreter", "of an idle python3 on the host", "MiB"),
    "idle_cpu_pct": Kind("of one core, by a paused sandbox", "by an idle python3 on the host", "%"),
}
"""Every row, in the order in which they are told."""


@dataclass(slots=True)
class Samples:
    """What was sampled for one row.

    Args:
        values: Of the thing itself.
        native: Of its yardstick, taken in turn with them.
        parts: Of parts and variants of the thing, by name.
        why: Why there are none.
        failed: How many attempts failed.
    """

    values: list[float] = field(default_factory=list)
    native: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    why: str | None = None
    failed: int = 0


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which that share of them lies, on the line between the two nearest.

    Args:
        values: At least one.
        percent: From 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def told(values: Sequence[float], unit: str) -> dict[str, Any]:
    """The figures of a series: ``p50_ms``, ``p95_ms``, ``p99_ms`` and ``n``; None where there are no values."""
    more = unit in MORE_IS_BETTER
    named = {
        f"p{percent}_ms": rounded(percentile(values, 100 - percent if more and percent != 50 else percent)) if values else None  # noqa: PLR2004
        for percent in (50, 95, 99)
    }
    return {**named, "n": len(values)}


def row(key: str, samples: Samples) -> dict[str, Any]:
    """A row of the report.

    Args:
        key: One of :data:`KINDS`.
        samples: What was sampled.
    """
    kind = KINDS[key]
    figures = told(samples.values, kind.unit)
    beside = rounded(percentile(samples.native, 50)) if samples.native else None
    made: dict[str, Any] = {**figures, "yardstick_ms": beside, "unit": kind.unit, "what": kind.what, "yardstick": kind.yardstick}
    if samples.parts:
        made["parts"] = {name: told(values, kind.unit) for name, values in sorted(samples.parts.items()) if values}
    if samples.failed:
        made["failed"] = samples.failed
    if not samples.values:
        made["why"] = samples.why or "It was not measured."
    return made


def rows(samples: Mapping[str, Samples]) -> dict[str, dict[str, Any]]:
    """All rows that there are samples for, in the order of :data:`KINDS`."""
    return {key: row(key, samples[key]) for key in KINDS if key in samples}


def table(found: Mapping[str, Mapping[str, Any]]) -> Iterable[list[str]]:
    """The rows for a person, each a line of cells; those that could not be measured say why in the last one."""
    for key, each in found.items():
        if each["n"]:
            beside = each["yardstick_ms"]
            native = [_short(beside), "-" if not beside or not each["p50_ms"] else _ratio(each["p50_ms"], beside, each["unit"])]
            yield [key, each["unit"], *(_short(each[f"p{percent}_ms"]) for percent in (50, 95, 99)), str(each["n"]), *native, each["what"]]
        else:
            yield [key, each["unit"], *["-"] * 6, each["why"]]
        for name, part in each.get("parts", {}).items():
            yield [f"  {name}", each["unit"], *(_short(part[f"p{percent}_ms"]) for percent in (50, 95, 99)), str(part["n"]), "-", "-", ""]


HEADS = ("ROW", "UNIT", "P50", "P95", "P99", "N", "YARDSTICK", "RATIO", "WHAT")


def rounded(value: float) -> float:
    """Four digits: more were noise."""
    return float(f"{value:.4g}")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _ratio(value: float, beside: float, unit: str) -> str:
    """Above 1 is worse than the native thing."""
    return f"{(beside / value if unit in MORE_IS_BETTER else value / beside):.3g}"
