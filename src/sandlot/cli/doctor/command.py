"""``sandlot doctor``: can this machine run sandboxes, found by running one, and what would help.

Exit status 0 means that it can, with what the operator set; what is merely missing comfort does not count. What is looked at is in ``checks.py``
and in ``host/checks``; this only tells it. The names and the JSON are stable, and described in ``docs/reference/doctor.md``.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sandlot.cli.output import visible

if TYPE_CHECKING:
    from types import FrameType

    from sandlot.cli.doctor.checks import Report
    from sandlot.host.checks.finding import Finding

SCHEMA = 1
"""Raised when something in the JSON changes its meaning or goes; what is added does not count."""
MARKS = {True: "ok", False: "NO", None: "??"}
COMFORT = "--"
"""What is missing and not required."""


def doctor(*, as_json: Annotated[bool, typer.Option("--json", help="Everything that was found, as JSON.")] = False) -> None:
    """Check whether this machine can run sandboxes, by running one."""
    from sandlot.cli.doctor import checks

    # The checks' processes are ended and what they made is removed on the way out, so leave by an exception.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) ignores one
            signal.signal(number, _leave)
    report = checks.examine(dict(os.environ))
    for line in (json.dumps(as_values(report), indent=2).splitlines()) if as_json else map(visible, lines(report)):
        typer.echo(line)
    raise typer.Exit(0 if report.able else 1)


def as_values(report: Report) -> dict[str, object]:
    """The report as JSON values."""
    from sandlot import __version__

    return {
        "schema": SCHEMA,
        "version": __version__,
        "ok": report.able,
        "isolation": {"default": report.default, "allowed": list(report.allowed)},
        "checks": [finding.dump() for finding in report.findings],
    }


def lines(report: Report) -> list[str]:
    """The report as lines for a person."""
    told: list[str] = []
    width = max((len(finding.name) for finding in report.findings), default=0)
    group = None
    for finding in report.findings:
        if finding.group != group:
            told += ["", finding.group] if told else [finding.group]
            group = finding.group
        told += _told(finding, width)
    told.append("")
    told.append("Sandboxes can run." if report.able else "Sandboxes cannot run: see the lines that begin with NO.")
    return told


def mark(finding: Finding) -> str:
    """Two characters that say it all."""
    return COMFORT if finding.ok is False and not finding.required else MARKS[finding.ok]


def _told(finding: Finding, width: int) -> list[str]:
    beneath = f"{' ' * width}    "
    told = [f"{mark(finding)}  {finding.name.ljust(width)}  {finding.detail}"]
    if finding.ok is not True and finding.fix:
        told.append(f"{beneath}  {finding.fix}")
    if finding.group == "isolation" and not finding.ok:  # what a driver cannot do besides does not matter then
        return told
    return told + [f"{beneath}- {part.name}: {part.detail}" for part in finding.parts if part.ok is False and part.detail]


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
