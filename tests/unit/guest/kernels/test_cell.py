"""Messages about a kernel that has ended, and output of a cell whose follower was lost."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sandlot.guest.kernels.cell import Cell, kernel_death_message
from sandlot.guest.loop import Loop
from sandlot.guest.rpc import Call
from sandlot.protocol.schema import STDERR, STDOUT
from tests.support.guest import ManualLoop, RecordingCall, flood

ARGS: dict[str, Any] = {"kernel": "default", "code": "", "env": {}, "timeout_s": None, "silent": None, "store_history": None, "stop_on_error": None}


@pytest.mark.parametrize(
    "status, began, late, expected",
    [
        ("died", True, False, "died"),
        ("killed", True, True, "did not react to an interrupt"),
        ("killed", True, False, "its context was restarted"),
        # A restart before the first message does not mean that the program of the language failed.
        ("killed", False, False, "its context was restarted"),
        ("died", False, False, "The node of the image did not start at all, so the code was not run"),
        ("died", False, True, "did not start in time"),
        ("oom", True, False, "ran out of memory"),
        ("oom", True, True, "ran out of memory"),
    ],
)
def test_message_names_the_cause_of_the_death(status: str, *, began: bool, late: bool, expected: str) -> None:
    assert expected in kernel_death_message(status, "javascript", began=began, late=late)


@pytest.mark.parametrize("status, named", [("killed", True), ("died", True), ("oom", False)])
def test_message_names_the_timeout_that_ended_the_kernel(status: str, *, named: bool) -> None:
    message = kernel_death_message(status, "python", began=True, late=True, timeout_s=1.5)
    assert ("timeout of 1.5 s" in message) is named
    assert "variables are lost" in message


def test_output_is_kept_for_30_seconds_after_its_reader_was_lost() -> None:
    loop, call = ManualLoop(), RecordingCall()
    cell = Cell(cast("Loop", loop), "c", ARGS)
    cell.follow(cast("Call", call), 0, 0, 0)

    call.on_gone()
    loop.advance(29.5)

    assert flood(cell.outputs, (STDOUT, STDERR)), "the kernel waits"
    loop.advance(1.0)
    assert not flood(cell.outputs, (STDOUT, STDERR)), "the oldest output is dropped"


def test_output_is_kept_for_30_seconds_after_the_last_of_several_readers_was_lost() -> None:
    loop = ManualLoop()
    cell = Cell(cast("Loop", loop), "c", ARGS)
    for _ in range(2):
        loop.advance(20.0)
        call = RecordingCall()
        cell.follow(cast("Call", call), 0, 0, 0)
        call.on_gone()

    loop.advance(29.5)

    assert flood(cell.outputs, (STDOUT, STDERR)), "the kernel waits"
