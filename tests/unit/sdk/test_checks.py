"""Failed runs as errors: ``check=True`` and ``result.check()``."""

from __future__ import annotations

import pytest

from sandlot import AsyncSandbox, CommandResult, ErrorCode, Execution, ExecutionFailedError, Fault, Sandbox
from tests.unit.sdk.scripted import Reply, Script, events

FAILED = {"id": "p1", "exit_code": 3, "stderr": "no", "reason": "exited"}
RAISED = {"id": "e1", "status": "error", "error": {"name": "KeyError", "value": "'x'", "traceback": []}, "done": True}


def test_check_returns_a_successful_result() -> None:
    command, execution = CommandResult(0), Execution("ok")
    assert (command.check(), execution.check()) == (command, execution)


@pytest.mark.parametrize(
    "result",
    [
        CommandResult(3),
        CommandResult(137, signal=9, reason="signalled"),
        CommandResult(124, signal=9, reason="timeout"),
        Execution("timeout"),
        Execution("died"),
    ],
)
def test_check_raises_for_every_other_result(result: CommandResult | Execution) -> None:
    with pytest.raises(ExecutionFailedError) as failed:
        result.check()
    assert failed.value.result is result
    assert failed.value.code is ErrorCode.EXECUTION_FAILED


def test_failed_command_is_reported_with_the_last_line_of_its_errors() -> None:
    with pytest.raises(ExecutionFailedError, match="No matching distribution"):
        CommandResult(1, stderr="Looking in indexes\nERROR: No matching distribution\n\n").check()


def test_runs_are_checked_on_request(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, FAILED))
    assert sandbox.commands.run("x").exit_code == 3
    with pytest.raises(ExecutionFailedError) as failed:
        sandbox.commands.run("x", check=True)
    assert failed.value.result == CommandResult(3, stderr="no", id="p1")
    with pytest.raises(ExecutionFailedError):
        sandbox.install("x", check=True)
    service.say(Reply(200, RAISED))
    with pytest.raises(ExecutionFailedError):
        sandbox.run_code("x", check=True)


def test_handles_are_checked_on_request(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(201, {"id": "p1", "pid": 5}), events(("exit", FAILED)))
    command = sandbox.commands.run("x", background=True)
    with pytest.raises(ExecutionFailedError):
        command.wait(check=True)
    assert command.result is not None
    service.say(Reply(202, {"id": "e1", "context": "default"}), events(("exit", RAISED)))
    code = sandbox.run_code("x", background=True)
    with pytest.raises(ExecutionFailedError):
        code.wait(check=True)
    assert code.result is not None


async def test_async_runs_are_checked_on_request(service: Script, async_sandbox: AsyncSandbox) -> None:
    service.say(Reply(200, FAILED))
    with pytest.raises(ExecutionFailedError):
        await async_sandbox.commands.run("x", check=True)
    service.say(Reply(200, RAISED))
    with pytest.raises(ExecutionFailedError):
        await async_sandbox.run_code("x", check=True)


def test_failed_check_has_the_fault_of_its_result() -> None:
    for result, fault in (
        (CommandResult(137, reason="oom", fault=Fault.LIMIT), Fault.LIMIT),
        (Execution(status="died", fault="of the future"), Fault.CODE),
        (CommandResult(1), Fault.CODE),
    ):
        with pytest.raises(ExecutionFailedError) as failed:
            result.check()
        assert failed.value.fault is fault
