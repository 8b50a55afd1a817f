"""``sandlot doctor``: print whether this machine can run sandboxes, and how to repair it.

The exit status is 0 if all required checks passed. The checks are in ``checks.py`` and in ``host/checks``. Names and JSON are
stable, and described in ``docs/reference/doctor.md``.
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
"""Version of the JSON: raised when a field changes its meaning or is removed, not when a field is added."""
MARKS = {True: "ok", False: "NO", None: "??"}
OPTIONAL = "--"
"""Mark of a failed check that is not required."""


def doctor(*, json_output: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False) -> None:
    """Check whether this machine can run sandboxes.

    Starts a sandbox with each driver. Exits with status 1 if the default isolation cannot run sandboxes.
    """
    from sandlot.cli.doctor import checks

    # An exception ends the processes of the checks and removes their files.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) ignores one
            signal.signal(number, _leave)
    report = checks.examine(dict(os.environ))
    for line in (json.dumps(as_values(report), indent=2).splitlines()) if json_output else map(visible, lines(report)):
        typer.echo(line)
    raise typer.Exit(0 if report.can_run else 1)


def as_values(report: Report) -> dict[str, object]:
    """Return the report as JSON values."""
    from sandlot import __version__

    return {
        "schema": SCHEMA,
        "version": __version__,
        "ok": report.can_run,
        "isolation": {"default": report.default, "allowed": list(report.allowed)},
        "checks": [finding.dump() for finding in report.findings],
    }


def lines(report: Report) -> list[str]:
    """Return the report as lines of text."""
    output: list[str] = []
    width = max((len(finding.name) for finding in report.findings), default=0)
    group = None
    for finding in report.findings:
        if finding.group != group:
            output += ["", finding.group] if output else [finding.group]
            group = finding.group
        output += _finding_lines(finding, width)
    output.append("")
    output.append("Sandboxes can run." if report.can_run else "Sandboxes cannot run: see the lines that begin with NO.")
    return output


def mark(finding: Finding) -> str:
    """Return the mark of a finding."""
    return OPTIONAL if finding.ok is False and not finding.required else MARKS[finding.ok]


def _finding_lines(finding: Finding, width: int) -> list[str]:
    beneath = f"{' ' * width}    "
    output = [f"{mark(finding)}  {finding.name.ljust(width)}  {finding.detail}"]
    if finding.ok is not True and finding.fix:
        output.append(f"{beneath}  {finding.fix}")
    if finding.group == "isolation" and not finding.ok:  # the reason of the failure says enough
        return output
    is_shown = finding.group == "isolation"  # an available capability may have restrictions
    return output + [f"{beneath}- {part.name}: {part.detail}" for part in finding.parts if part.detail and (is_shown or part.ok is False)]


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
