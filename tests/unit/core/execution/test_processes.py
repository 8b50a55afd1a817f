"""Processes: collected, followed, in the background, signalled, restarted, and left by their clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.core.execution import processes
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, NotFoundError, TimeoutExceededError
from sandlot.model.executions import signal_number
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.model.states import State
from tests.support.node import NodeState, open_node, settled
from tests.support.service import Bench, pieces
from tests.support.until import until


async def test_wait_returns_the_end_of_a_process_whose_output_is_not_read(at: Bench, sandbox: Sandbox) -> None:
    id_ = (await at.node.processes.launch(OPERATOR, sandbox.id, sh("sleep 0.3; head -c 4000000 /dev/zero; exit 3"))).process
    assert await at.node.processes.wait(OPERATOR, sandbox.id, id_, timeout_s=0.01) is None
    assert await at.node.processes.wait(OPERATOR, sandbox.id, id_, timeout_s=0) is None
    waited = await asyncio.gather(at.node.processes.wait(OPERATOR, sandbox.id, id_), at.node.processes.wait(OPERATOR, sandbox.id, id_, timeout_s=60))
    assert {outcome.exit_code for outcome in waited if outcome is not None} == {3}
    assert await at.node.processes.wait(OPERATOR, sandbox.id, id_, timeout_s=0) == waited[0], "also afterwards"
    with pytest.raises(NotFoundError):
        await at.node.processes.wait(OPERATOR, sandbox.id, "0" * 32)


async def test_wait_returns_while_another_client_reads_slowly(at: Bench, sandbox: Sandbox) -> None:
    id_ = (await at.node.processes.launch(OPERATOR, sandbox.id, sh("head -c 700000 /dev/zero"))).process
    slow = await at.node.processes.follow_in(sandbox, id_, stdout_from=0, stderr_from=0)
    try:
        done = await at.node.processes.wait(OPERATOR, sandbox.id, id_, timeout_s=60)
        assert done is not None
        assert done.exit_code == 0
    finally:
        await slow.detach()


async def test_process_whose_client_disconnects_during_its_start_is_killed(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        guest = node.guest(sandbox)
        start = guest.hold("process.start")
        running = asyncio.create_task(node.services.processes.run(OPERATOR, sandbox.id, sh("sleep 1000")))
        await start.reached.wait()

        running.cancel()
        start.release()

        with pytest.raises(asyncio.CancelledError):
            await running
        await settled(lambda: not sandbox.tasks and not guest.processes.running)


async def test_run_whose_guest_falls_silent_fails_at_the_end_of_the_grace_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        with pytest.raises(TimeoutExceededError):  # the scripted guest does not enforce the timeout
            await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("sleep", "1000"), timeout_s=0.1))


@pytest.mark.parametrize("program, hint", [("Rscript", "Use the template `languages`"), ("no-such-program", "Check the name")])
async def test_missing_interpreter_is_reported_with_the_template_that_has_it(tmp_path: Path, program: str, hint: str) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        for start in (node.services.processes.run, node.services.processes.launch):
            with pytest.raises(NotFoundError, match=hint):
                await start(OPERATOR, sandbox.id, ProcessSpec((program, "program.R")))


async def test_client_lost_by_a_hibernation_kills_no_process(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        run = await node.services.processes.start(sandbox, sh("sleep 1000", timeout_s=None))
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

        await run.close()
        await settled(lambda: not sandbox.tasks)

        assert sandbox.state is State.HIBERNATED
        assert (await node.services.processes.get(OPERATOR, sandbox.id, run.id)).running


async def test_write_to_a_process_without_input_is_refused(at: Bench, sandbox: Sandbox) -> None:
    id_ = (await at.node.processes.launch(OPERATOR, sandbox.id, sh("sleep 4325", timeout_s=None))).process
    with pytest.raises(ConflictError):
        await at.service.internals.stdin.write(sandbox, id_, pieces(b"x"))
    with pytest.raises(ConflictError):
        await at.service.internals.stdin.close(sandbox, id_)
    await at.node.processes.signal(OPERATOR, sandbox.id, id_, 9)


@pytest.mark.parametrize("asked,number", [("SIGTERM", 15), ("term", 15), ("Kill", 9), (2, 2), (64, 64)])
def test_signal_is_found_by_name_and_by_number(asked: str | int, number: int) -> None:
    assert signal_number(asked) == number


def sh(command: str, *, stdin: bool = False, timeout_s: float | None = 60, user: User = User.USER) -> ProcessSpec:
    return ProcessSpec(shell_argv(command), stdin=stdin, timeout_s=timeout_s, user=user)


async def test_restart_kills_the_process_and_starts_the_same_again(at: Bench, sandbox: Sandbox) -> None:
    spec = ProcessSpec(("sh", "-c", 'echo "$A"; pwd; exec sleep 1000'), env={"A": "again"}, cwd="/tmp", tag="mine", timeout_s=None)
    started = await at.node.processes.launch(OPERATOR, sandbox.id, spec)
    first, first_pid = started.process, started.pid
    restarted = await at.node.processes.restart(OPERATOR, sandbox.id, first)
    second = restarted.process
    assert first != second
    assert first_pid != restarted.pid
    assert (await at.node.processes.get(OPERATOR, sandbox.id, first)).signal == 9
    found = await at.node.processes.get(OPERATOR, sandbox.id, second)
    assert [(each.argv, each.env, each.cwd, each.tag) for each in (restarted, found)] == [(spec.argv, spec.env, spec.cwd, spec.tag)] * 2

    async def has_written() -> bool:
        return (await at.node.processes.read(OPERATOR, sandbox.id, second, stdout_from=None, stderr_from=None))[1].text() == "again\n/tmp\n"

    await until(has_written)
    await at.node.processes.signal(OPERATOR, sandbox.id, second, 9)
    await at.node.processes.wait(OPERATOR, sandbox.id, second)
    third = (await at.node.processes.restart(OPERATOR, sandbox.id, second)).process
    assert (await at.node.processes.get(OPERATOR, sandbox.id, third)).running
    await at.node.processes.signal(OPERATOR, sandbox.id, third, 9)


async def test_restart_without_known_parameters_leaves_the_process_alone(at: Bench, sandbox: Sandbox) -> None:
    process = (await at.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(("sleep", "1000"), timeout_s=None))).process
    at.node.processes.state.of(sandbox).close()
    with pytest.raises(ConflictError):
        await at.node.processes.restart(OPERATOR, sandbox.id, process)
    assert (await at.node.processes.get(OPERATOR, sandbox.id, process)).running
    await at.node.processes.signal(OPERATOR, sandbox.id, process, 9)
    with pytest.raises(NotFoundError):
        await at.node.processes.restart(OPERATOR, sandbox.id, "0" * 32)
