"""Marks of kernels: unique, and inherited by children."""

from __future__ import annotations

import subprocess

import pytest

from sandlot.guest.kernels import process_group
from sandlot.guest.kernels.process_group import FIRST_MARK, ProcessGroups
from sandlot.guest.process.accounts import lookup_account


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The marks of the groups that a test creates."""
    created: list[int] = []
    monkeypatch.setattr(process_group, "ProcessGroup", lambda _pid, _account, mark: created.append(mark))
    return created


def test_every_kernel_has_a_unique_mark(marks: list[int]) -> None:
    groups = ProcessGroups()
    for _ in range(3):
        groups.create(1 << 22, lookup_account("user"))

    assert len(set(marks)) == 3
    assert min(marks) > FIRST_MARK


@pytest.mark.parametrize("user", ["user", "4321", "root"])
def test_process_and_its_children_have_the_mark(user: str) -> None:
    account = lookup_account(user)
    ids = {"user": account.uid, "group": account.gid}
    with subprocess.Popen(["sh", "-c", "read line; sh -c 'ulimit -Hf'"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **ids) as process:  # type: ignore[call-overload]
        ProcessGroups().create(process.pid, account)
        output, _ = process.communicate("\n")

    assert int(output) == (FIRST_MARK + 1) // 512
