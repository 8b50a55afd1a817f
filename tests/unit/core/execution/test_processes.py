"""Processes: collected, followed, left, fed, signalled; and what becomes of them when their client goes away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.execution import output, processes
from sandlot.core.execution import stdin as process_stdin
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.model.states import State
from tests.support.node import NodeState, open_node, settled
from tests.support.service import pieces


async def test_its_end_is_waited_for_without_reading(sandbox: Sandbox) -> None:
    id_, _ = await processes.launch(sandbox, sh("sleep 0.3; head -c 4000000 /dev/zero; exit 3"))
    assert await processes.wait(sandbox, id_, 0.01) is None
    assert await processes.wait(sandbox, id_, 0) is None
    waited = await asyncio.gather(processes.wait(sandbox, id_), processes.wait(sandbox, id_, 60))
    assert {outcome.exit_code for outcome in waited if outcome is not None} == {3}
    assert await processes.wait(sandbox, id_, 0) == waited[0], "also afterwards"
    with pytest.raises(NotFoundError):
        await processes.wait(sandbox, "0" * 32)


async def test_the_end_is_told_also_while_somebody_reads_slowly(sandbox: Sandbox) -> None:
    id_, _ = await processes.launch(sandbox, sh("head -c 700000 /dev/zero"))
    slow = await processes.follow(sandbox, id_, stdout_from=0, stderr_from=0)
    try:
        done = await processes.wait(sandbox, id_, 60)
        assert done is not None
        assert done.exit_code == 0
    finally:
        await slow.detach()


async def test_process_whose_client_goes_away_during_its_start_is_killed(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
        guest = node.guest(sandbox)
        start = guest.hold("process.start")
        running = asyncio.create_task(processes.run(sandbox, sh("sleep 1000")))
        await start.reached.wait()

        running.cancel()
        start.release()

        with pytest.raises(asyncio.CancelledError):
            await running
        await settled(lambda: not sandbox.tasks and not guest.processes.running)


async def test_client_lost_by_a_hibernation_kills_no_process(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
        run = await processes.start(sandbox, sh("sleep 1000", timeout_s=None))
        await node.sandboxes.hibernate(sandbox.id, OPERATOR)

        await run.close()
        await settled(lambda: not sandbox.tasks)

        assert sandbox.state is State.HIBERNATED
        assert (await processes.look(sandbox, run.id)).running


async def test_one_that_takes_no_input_says_so(sandbox: Sandbox) -> None:
    id_, _ = await processes.launch(sandbox, sh("sleep 4325", timeout_s=None))
    with pytest.raises(ConflictError):
        await process_stdin.write(sandbox, id_, pieces(b"x"))
    with pytest.raises(ConflictError):
        await process_stdin.close(sandbox, id_)
    await processes.send_signal(sandbox, id_, 9)


@pytest.mark.parametrize("asked,number", [("SIGTERM", 15), ("term", 15), ("Kill", 9), (2, 2), (64, 64)])
def test_signals_by_name_and_number(asked: str | int, number: int) -> None:
    assert processes.signal_number(asked) == number


@pytest.mark.parametrize("seconds,told", [(1.5, 1.5), (0, 0), (-1, 0), (float("nan"), 0), (float("inf"), 0)])
def test_a_duration_that_json_carries(seconds: float, told: float) -> None:
    assert output.finite(seconds) == told


def sh(command: str, *, stdin: bool = False, timeout_s: float | None = 60, user: User = User.USER) -> ProcessSpec:
    return ProcessSpec(shell_argv(command), stdin=stdin, timeout_s=timeout_s, user=user)
