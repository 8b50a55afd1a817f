"""Affinity of the guest and of running processes after a change of the number of shown processors. Processes are simulated."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

import pytest

from sandlot.guest.process import affinity
from sandlot.guest.process.affinity import SELF, ShownProcessors


class Kernel:
    """Affinities of processes on a machine with four processors.

    Attributes:
        masks: Pid -> affinity. Pid 0 stands for the guest.
        calls: Number of calls that set an affinity.
    """

    def __init__(self) -> None:
        self.masks: dict[int, set[int]] = {pid: {0, 1, 2, 3} for pid in (SELF, 7, 8)}
        self.calls = 0

    def get(self, pid: int) -> set[int]:
        if pid not in self.masks:
            raise ProcessLookupError(errno.ESRCH, "No such process")
        return set(self.masks[pid])

    def set(self, pid: int, processors: Iterable[int]) -> None:
        self.calls += 1
        self.get(pid)
        if not (mask := {0, 1, 2, 3} & set(processors)):
            raise OSError(errno.EINVAL, "Invalid argument")
        self.masks[pid] = mask


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(os, "sched_getaffinity", made.get)
    monkeypatch.setattr(os, "sched_setaffinity", made.set)
    monkeypatch.setattr(affinity, "all_pids", lambda: [7, 8, 9])  # 9 ends before its affinity is read
    return made


def test_guest_and_running_processes_get_the_first_processors(kernel: Kernel) -> None:
    ShownProcessors().show(1)

    assert kernel.masks == {SELF: {0}, 7: {0}, 8: {0}}


def test_process_that_has_changed_its_affinity_keeps_it(kernel: Kernel) -> None:
    shown = ShownProcessors()
    shown.show(2)
    kernel.masks[8] = {1}

    shown.show(1)
    assert kernel.masks == {SELF: {0}, 7: {0}, 8: {1}}

    shown.show(3)
    assert kernel.masks == {SELF: {0, 1, 2}, 7: {0, 1, 2}, 8: {1}}


@pytest.mark.parametrize("count", [4, 64])
def test_all_processors_are_shown_if_there_are_no_more(kernel: Kernel, count: int) -> None:
    shown = ShownProcessors()
    shown.show(1)

    shown.show(count)

    assert kernel.masks[SELF] == kernel.masks[7] == {0, 1, 2, 3}


@pytest.mark.parametrize("count", [None, 2])
def test_nothing_is_set_if_the_number_is_unknown_or_shown_already(kernel: Kernel, count: int | None) -> None:
    shown = ShownProcessors()
    shown.show(2)
    before = kernel.calls

    shown.show(count)

    assert kernel.calls == before


def test_refused_affinity_does_not_end_the_guest(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _processors: Iterable[int]) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    ShownProcessors().show(1)

    assert kernel.masks[SELF] == {0, 1, 2, 3}
