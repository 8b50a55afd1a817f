"""Processes: collected, followed, left, fed, signalled; and what becomes of them when their client goes away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.core.runs import inputs, outcomes, processes
from sandlot.core.runs.processes import STDERR, STDOUT, Run
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import Output
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, InvalidRequestError, NotFoundError
from sandlot.model.specs import ProcessSpec, User, shell_argv
from sandlot.model.states import State
from tests.support.node import CreateSandboxParams, NodeState, open_node, settled
from tests.support.until import until


async def test_its_end_is_waited_for_without_reading(box: Sandbox) -> None:
    id_, _ = await processes.launch(box, sh("sleep 0.3; head -c 4000000 /dev/zero; exit 3"))
    assert await processes.wait(box, id_, 0.01) is None
    assert await processes.wait(box, id_, 0) is None
    waited = await asyncio.gather(processes.wait(box, id_), processes.wait(box, id_, 60))
    assert {outcome.exit_code for outcome in waited if outcome is not None} == {3}
    assert await processes.wait(box, id_, 0) == waited[0], "also afterwards"
    with pytest.raises(NotFoundError):
        await processes.wait(box, "0" * 32)


async def test_the_end_is_told_also_while_somebody_reads_slowly(box: Sandbox) -> None:
    id_, _ = await processes.launch(box, sh("head -c 700000 /dev/zero"))
    slow = await processes.follow(box, id_, stdout_from=0, stderr_from=0)
    try:
        done = await processes.wait(box, id_, 60)
        assert done is not None
        assert done.exit_code == 0
    finally:
        await slow.detach()


@pytest.mark.real_guest
async def test_a_client_that_goes_away_while_it_starts(box: Sandbox) -> None:
    for _ in range(10):
        running = asyncio.create_task(processes.run(box, sh("sleep 4322")))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until_dead(box, "4322")


async def test_client_lost_by_a_hibernation_kills_no_process(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
        run = await processes.start(sandbox, sh("sleep 1000", timeout_s=None))
        await node.sandboxes.hibernate(sandbox.id, OPERATOR)

        await run.close()
        await settled(lambda: not sandbox.tasks)

        assert sandbox.state is State.HIBERNATED
        assert (await processes.look(sandbox, run.id)).running


async def test_one_that_takes_no_input_says_so(box: Sandbox) -> None:
    id_, _ = await processes.launch(box, sh("sleep 4325", timeout_s=None))
    with pytest.raises(ConflictError):
        await inputs.write(box, id_, pieces(b"x"))
    with pytest.raises(ConflictError):
        await inputs.close(box, id_)
    await processes.send_signal(box, id_, 9)


@pytest.mark.parametrize("asked,number", [("SIGTERM", 15), ("term", 15), ("Kill", 9), (2, 2), (64, 64)])
def test_signals_by_name_and_number(asked: str | int, number: int) -> None:
    assert processes.signal_number(asked) == number


@pytest.mark.parametrize("asked", ["", "SIG", "NOPE", 0, -1, 65, 10**30])
def test_no_signals(asked: str | int) -> None:
    with pytest.raises(InvalidRequestError):
        processes.signal_number(asked)


@pytest.mark.parametrize("seconds,told", [(1.5, 1.5), (0, 0), (-1, 0), (float("nan"), 0), (float("inf"), 0)])
def test_a_duration_that_json_carries(seconds: float, told: float) -> None:
    assert outcomes.finite(seconds) == told


def sh(command: str, *, stdin: bool = False, timeout_s: float | None = 60, user: User = User.USER) -> ProcessSpec:
    return ProcessSpec(shell_argv(command), stdin=stdin, timeout_s=timeout_s, user=user)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def collected(run: Run) -> dict[int, bytes]:
    got = {STDOUT: b"", STDERR: b""}
    async for event in run:
        assert isinstance(event, Output)
        got[event.channel] += event.data
    return got


async def alive(box: Sandbox, word: str) -> bool:
    """Whether a process with that argument lives in the sandbox."""
    look = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null | grep -v grep | grep -c 'sleep " + word + "' || true"
    done = await processes.run(box, ProcessSpec(("sh", "-c", look.replace(word, word[0] + "[" + word[1] + "]" + word[2:])), user=User.ROOT))
    return done.stdout.text().strip() != "0"


async def until_dead(box: Sandbox, word: str) -> None:
    async def dead() -> bool:
        return not await alive(box, word)

    await until(dead)
