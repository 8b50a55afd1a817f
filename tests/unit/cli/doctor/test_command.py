"""A report into lines and JSON."""

from __future__ import annotations

from dataclasses import replace

from sandlot.cli.doctor.checks import Report
from sandlot.cli.doctor.command import lines
from sandlot.host.checks.finding import Finding, Part

FINE = Finding("system", ok=True, detail="Debian", required=False, group="machine")
MISSING = Finding("user", ok=False, detail="uid 5", fix="use sudo", group="machine", parts=(Part("a", ok=True), Part("b", ok=False, detail="no b")))
OPTIONAL = Finding("kvm", ok=False, detail="not there", fix="load it", required=False, group="kernel")
UNKNOWN = Finding("loop-devices", ok=None, detail="not tried: only root can run this check", group="storage")


def test_what_is_required_decides_and_what_could_not_be_looked_at_is_no_yes() -> None:
    assert Report((FINE, OPTIONAL)).can_run
    assert not Report((FINE, MISSING)).can_run
    assert not Report((FINE, UNKNOWN)).can_run


def test_the_lines_name_what_is_missing_and_what_to_do() -> None:
    assert lines(Report((FINE, MISSING, OPTIONAL, UNKNOWN))) == [
        "machine",
        "ok  system        Debian",
        "NO  user          uid 5",
        "                  use sudo",
        "                - b: no b",
        "",
        "kernel",
        "--  kvm           not there",
        "                  load it",
        "",
        "storage",
        "??  loop-devices  not tried: only root can run this check",
        "",
        "Sandboxes cannot run: see the lines that begin with NO.",
    ]
    assert lines(Report((FINE,)))[-1] == "Sandboxes can run."


def test_lines_name_the_restrictions_of_a_driver() -> None:
    parts = (Part("boot", ok=True), Part("network", ok=True, detail="runsc copies the network"))
    found = Finding("gvisor", ok=True, detail="runsc 1", group="isolation", parts=parts)
    assert [line.strip() for line in lines(Report((found,)))][1:3] == ["ok  gvisor  runsc 1", "- network: runsc copies the network"]
    assert "copies" not in "".join(lines(Report((replace(found, group="kernel"),))))
