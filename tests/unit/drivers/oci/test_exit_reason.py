"""Table of evidence and reasons of the end of a sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.drivers.oci.exit_reason import DESTROYED, SAVED, Evidence, explain
from sandlot.model.ports import ExitReason

NOTHING = Evidence(
    status=None,
    kept_headroom=False,
    ended_for="",
    oom_kills=0,
    panic="",
    disk_full=False,
    memory_bytes=256 << 20,
    oom_statuses=frozenset((1, 137, -9)),
)


@pytest.mark.parametrize(
    "evidence, reason",
    [
        (replace(NOTHING, status=0), ExitReason.EXITED),
        (replace(NOTHING, status=0, oom_kills=3), ExitReason.EXITED),
        (replace(NOTHING, status=0, ended_for=DESTROYED), ExitReason.EXITED),
        (replace(NOTHING, status=3), ExitReason.EXITED),
        (replace(NOTHING, status=3, ended_for=DESTROYED), ExitReason.EXITED),
        (replace(NOTHING, status=137), ExitReason.CRASHED),
        (replace(NOTHING, status=143), ExitReason.CRASHED),
        (replace(NOTHING, status=134), ExitReason.CRASHED),
        (replace(NOTHING, status=139), ExitReason.CRASHED),
        (replace(NOTHING, status=-9, ended_for=DESTROYED), ExitReason.KILLED),
        (replace(NOTHING, ended_for=DESTROYED), ExitReason.KILLED),
        (replace(NOTHING, status=-9, ended_for=SAVED), ExitReason.KILLED),
        (replace(NOTHING, status=0, kept_headroom=True), ExitReason.EXITED),
        (replace(NOTHING, status=-9, kept_headroom=True), ExitReason.OOM),
        (replace(NOTHING, kept_headroom=True, ended_for=DESTROYED), ExitReason.OOM),
        (replace(NOTHING, status=137, ended_for=SAVED, oom_kills=1), ExitReason.KILLED),
        (replace(NOTHING, ended_for=DESTROYED, oom_kills=1), ExitReason.KILLED),
        (replace(NOTHING, status=-9), ExitReason.CRASHED),
        (replace(NOTHING, status=-15), ExitReason.CRASHED),
        (NOTHING, ExitReason.CRASHED),
        (replace(NOTHING, status=-9, oom_kills=1), ExitReason.OOM),
        (replace(NOTHING, status=1, oom_kills=1), ExitReason.OOM),
        (replace(NOTHING, status=137, oom_kills=1), ExitReason.OOM),
        (replace(NOTHING, oom_kills=1), ExitReason.OOM),
        # The kernel took a process inside, some time before.
        (replace(NOTHING, status=3, oom_kills=1), ExitReason.EXITED),
        (replace(NOTHING, status=1, oom_kills=1, oom_statuses=frozenset((-9,))), ExitReason.EXITED),
        (replace(NOTHING, status=143, oom_kills=1), ExitReason.CRASHED),
        (replace(NOTHING, status=-11, oom_kills=1), ExitReason.CRASHED),
        (replace(NOTHING, status=2, panic="panic: x", oom_kills=1), ExitReason.CRASHED),
        (replace(NOTHING, status=2, panic="panic: x"), ExitReason.CRASHED),
        (replace(NOTHING, panic="panic: x"), ExitReason.CRASHED),
        (replace(NOTHING, status=-11), ExitReason.CRASHED),
        (replace(NOTHING, status=-31), ExitReason.CRASHED),
        (replace(NOTHING, status=2, panic="panic: x", disk_full=True), ExitReason.DISK),
        (replace(NOTHING, status=-7, disk_full=True), ExitReason.DISK),
        (replace(NOTHING, status=0, disk_full=True), ExitReason.EXITED),
        (replace(NOTHING, status=-9, disk_full=True), ExitReason.CRASHED),
    ],
)
def test_reason_follows_from_the_evidence(evidence: Evidence, reason: ExitReason) -> None:
    assert explain(evidence).reason is reason


def test_detail_names_limit_signal_code_or_panic() -> None:
    assert "256 MiB" in explain(replace(NOTHING, status=1, oom_kills=1)).detail
    assert "SIGSEGV" in explain(replace(NOTHING, status=-11)).detail
    assert "code 3" in explain(replace(NOTHING, status=3)).detail
    assert "panic: here" in explain(replace(NOTHING, status=2, panic="panic: here\n" + "goroutine" * 10_000)).detail
    assert all(len(explain(replace(NOTHING, status=status, panic="x" * 100_000)).detail) < 2000 for status in (None, -7, 0, 1, 2))


@pytest.mark.parametrize("status", [None, -9, 137])
def test_end_by_the_service_is_reported_whichever_process_dies_first(status: int | None) -> None:
    assert explain(replace(NOTHING, status=status, ended_for=SAVED)).detail == SAVED
    assert explain(replace(NOTHING, status=143, ended_for=SAVED)).detail != SAVED
