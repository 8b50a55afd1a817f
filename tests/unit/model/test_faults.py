"""Fault classes: every error code, reason of an end, status of a run and verdict has one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandlot.core.programs.verdict import PROGRAM_FAULTS
from sandlot.model.access import OwnerId
from sandlot.model.errors import CODES, FAULTS, ErrorCode, from_code
from sandlot.model.executions import LOST, RUN_FAULTS, RUNNING, run_fault
from sandlot.model.faults import Fault
from sandlot.model.ids import SandboxId
from sandlot.model.ports import EXIT_FAULTS, Exit, ExitReason
from sandlot.model.programs import ProgramStatus
from sandlot.model.records import EventRecord, NewEvent
from sandlot.model.sandboxes import ended_error
from sandlot.protocol.schema import CELL_STATUSES, PROCESS_REASONS

SANDBOX = SandboxId("sb-node-aaaaaaaaaaaaaaaa")


def test_tables_are_total() -> None:
    assert set(FAULTS) == set(ErrorCode)
    assert set(EXIT_FAULTS) == set(ExitReason)
    assert set(RUN_FAULTS) == {*PROCESS_REASONS, *CELL_STATUSES, RUNNING, LOST}
    assert set(PROGRAM_FAULTS) == set(ProgramStatus)


@pytest.mark.parametrize("code", ErrorCode)
def test_fault_of_a_code_agrees_with_its_status(code: ErrorCode) -> None:
    status, retryable = CODES[code]
    error = from_code(code, "what happened")
    assert error.fault is FAULTS[code]
    assert from_code(code, "what happened", fault=Fault.CODE).fault is Fault.CODE
    if retryable:
        assert error.fault in {Fault.CAPACITY, Fault.PLATFORM}
    if error.fault is Fault.REQUEST:
        assert status < 500 or code is ErrorCode.UNSUPPORTED
    if error.fault in {Fault.CAPACITY, Fault.PLATFORM}:
        assert status >= 500 or code is ErrorCode.TIMEOUT


@pytest.mark.parametrize(
    "reason, of_end, of_call",
    [
        (ExitReason.EXITED, None, Fault.REQUEST),
        (ExitReason.KILLED, None, Fault.REQUEST),
        (ExitReason.OOM, Fault.LIMIT, Fault.LIMIT),
        (ExitReason.DISK, Fault.LIMIT, Fault.LIMIT),
        (ExitReason.CRASHED, Fault.LOST, Fault.LOST),
        (None, None, Fault.LOST),
    ],
)
def test_ended_sandbox_and_calls_to_it(reason: ExitReason | None, of_end: Fault | None, of_call: Fault) -> None:
    end = None if reason is None else Exit(reason)
    assert (None if end is None else end.fault) is of_end
    assert ended_error(SANDBOX, end).fault is of_call


@pytest.mark.parametrize(
    "status, exit_code, fault",
    [
        ("exited", 0, None),
        ("exited", None, None),
        ("exited", 3, Fault.CODE),
        ("signalled", 139, Fault.CODE),
        ("timeout", 124, Fault.CODE),
        ("oom", 137, Fault.LIMIT),
        ("lost", None, Fault.LOST),
    ],
)
def test_exit_code_decides_for_a_process_that_exited(status: str, exit_code: int | None, fault: Fault | None) -> None:
    assert run_fault(status, exit_code) is fault


@pytest.mark.parametrize(
    "type_, reason, fault",
    [
        ("sandbox.created", None, None),
        ("sandbox.ended", "killed", None),
        ("sandbox.ended", "oom", Fault.LIMIT),
        ("sandbox.ended", "crashed", Fault.LOST),
        ("sandbox.ended", None, None),
        ("snapshot.unusable", "damaged", Fault.LOST),
    ],
)
def test_events_of_failures(type_: str, reason: str | None, fault: Fault | None) -> None:
    event = NewEvent(type_, datetime(2026, 1, 1, tzinfo=UTC), OwnerId("local"), SANDBOX, {"reason": reason})
    assert EventRecord(1, event).fault is fault
