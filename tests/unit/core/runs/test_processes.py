"""Processes: collected, followed, left, fed, signalled; and what becomes of them when their client goes away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.core.runs import inputs, outcomes, processes
from sandlot.core.runs.processes import STDERR, STDOUT, Run
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import Output
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.specs import MIB, ProcessSpec, User, shell_argv
from sandlot.model.states import State
from tests.support.node import CreateSandboxParams, NodeState, open_node, settled
from tests.support.until import until


async def test_what_it_writes_and_how_it_ends(box: Sandbox) -> None:
    done = await processes.run(box, sh("echo out; echo err >&2; exit 3"))
    assert (done.stdout.text(), done.stderr.text()) == ("out\n", "err\n")
    assert (done.outcome.exit_code, done.outcome.signal, done.outcome.reason) == (3, None, "exited")
    assert done.outcome.duration_s > 0


async def test_a_signal_is_told_as_a_shell_tells_it(box: Sandbox) -> None:
    done = await processes.run(box, sh("kill -TERM $$"))
    assert (done.outcome.exit_code, done.outcome.signal, done.outcome.reason) == (143, 15, "signalled")


@pytest.mark.real_guest
async def test_a_timeout_kills_the_whole_group(box: Sandbox) -> None:
    done = await processes.run(box, sh("sleep 1234 & sleep 1234", timeout_s=0.3))
    assert (done.outcome.reason, done.outcome.exit_code) == ("timeout", 137)
    assert not await alive(box, "1234")


async def test_the_middle_of_much_output_is_left_out_and_counted(box: Sandbox) -> None:
    done = await processes.run(box, sh("head -c 3000000 /dev/zero | tr '\\0' a; echo end"))
    assert done.stdout.omitted == 3000004 - 2 * MIB
    assert done.stdout.text().endswith("aend\n")


async def test_input_reaches_it_whole_and_ends(box: Sandbox) -> None:
    content = bytes(range(256)) * 4096
    done = await processes.run(box, sh("sha256sum; wc -c", stdin=True), stdin=content)
    assert done.stdout.text().startswith(hashlib.sha256(content).hexdigest())


async def test_input_that_it_does_not_read_is_no_error(box: Sandbox) -> None:
    assert (await processes.run(box, sh("exit 0", stdin=True), stdin=b"x" * 1_000_000)).outcome.exit_code == 0


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
async def test_a_client_that_goes_away_takes_its_processes_along(box: Sandbox) -> None:
    running = asyncio.create_task(processes.run(box, sh("sleep 4321 & sleep 4321")))
    await until_alive(box, "4321")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until_dead(box, "4321")


@pytest.mark.real_guest
async def test_a_client_that_goes_away_while_it_starts(box: Sandbox) -> None:
    for _ in range(10):
        running = asyncio.create_task(processes.run(box, sh("sleep 4322")))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await until_dead(box, "4322")


async def test_followed_as_it_runs(box: Sandbox) -> None:
    run = await processes.start(box, sh("echo 1; sleep 0.2; echo 2"))
    assert run.pid > 1
    pieces = [event.data async for event in run if isinstance(event, Output)]
    assert b"".join(pieces) == b"1\n2\n"
    assert len(pieces) == 2
    assert (await run.outcome()).exit_code == 0
    await run.close()
    await run.close()


@pytest.mark.real_guest
async def test_closing_one_that_runs_kills_it(box: Sandbox) -> None:
    run = await processes.start(box, sh("sleep 4323"))
    await until_alive(box, "4323")
    await run.close()
    await until_dead(box, "4323")


async def test_client_lost_by_a_hibernation_kills_no_process(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(CreateSandboxParams(template="base"), OPERATOR)
        run = await processes.start(sandbox, sh("sleep 1000", timeout_s=None))
        await node.sandboxes.hibernate(sandbox.id, OPERATOR)

        await run.close()
        await settled(lambda: not sandbox.tasks)

        assert sandbox.state is State.HIBERNATED
        assert (await processes.look(sandbox, run.id)).running


@pytest.mark.real_guest
async def test_in_the_background_it_lives_on_and_can_be_found_again(box: Sandbox) -> None:
    id_, pid = await processes.launch(box, sh("echo one; read line; echo got $line; exit 5", stdin=True, timeout_s=None))
    assert pid > 1
    (known,) = await processes.listing(box)
    assert (known.process, known.pid, known.running) == (id_, pid, True)
    await until_written(box, id_, b"one\n")
    await inputs.write(box, id_, pieces(b"h", b"i\n"))
    run = await processes.follow(box, id_, stdout_from=4, stderr_from=0)
    assert await collected(run) == {STDOUT: b"got hi\n", STDERR: b""}
    assert (await run.outcome()).exit_code == 5
    await run.detach()
    outcome, stdout, _ = await processes.kept(box, id_, stdout_from=None, stderr_from=None)
    assert outcome is not None
    assert (outcome.exit_code, stdout.text()) == (5, "one\ngot hi\n")


@pytest.mark.real_guest
async def test_what_there_is_by_now_does_not_wait_for_more(box: Sandbox) -> None:
    id_, _ = await processes.launch(box, sh("echo now; sleep 4324", timeout_s=None))
    await until_written(box, id_, b"now\n")
    outcome, stdout, stderr = await processes.kept(box, id_, stdout_from=0, stderr_from=0)
    assert (outcome, stdout.text(), stderr.text()) == (None, "now\n", "")
    outcome, stdout, _ = await processes.kept(box, id_, stdout_from=4, stderr_from=0)
    assert (outcome, stdout.text()) == (None, "")
    assert await processes.send_signal(box, id_, 9)
    await until_dead(box, "4324")


async def test_input_can_be_written_in_parts_by_anybody_and_closed(box: Sandbox) -> None:
    id_, _ = await processes.launch(box, sh("cat", stdin=True, timeout_s=None))
    for part in (b"a" * 100_000, b"b" * 100_000):
        await inputs.write(box, id_, pieces(part))
    await inputs.close(box, id_)
    run = await processes.follow(box, id_, stdout_from=0, stderr_from=0)
    assert (await collected(run))[STDOUT] == b"a" * 100_000 + b"b" * 100_000
    await run.detach()
    with pytest.raises(ConflictError):
        await inputs.write(box, id_, pieces(b"late"))


async def test_input_of_one_that_is_followed(box: Sandbox) -> None:
    run = await processes.start(box, sh("cat", stdin=True))
    await inputs.write(box, run.id, pieces(b"hello"))
    await inputs.close(box, run.id)
    assert (await collected(run))[STDOUT] == b"hello"
    await run.close()


async def test_one_that_takes_no_input_says_so(box: Sandbox) -> None:
    id_, _ = await processes.launch(box, sh("sleep 4325", timeout_s=None))
    with pytest.raises(ConflictError):
        await inputs.write(box, id_, pieces(b"x"))
    with pytest.raises(ConflictError):
        await inputs.close(box, id_)
    await processes.send_signal(box, id_, 9)


async def test_an_unknown_process(box: Sandbox) -> None:
    unknown = "0" * 32
    with pytest.raises(NotFoundError):
        await processes.follow(box, unknown, stdout_from=0, stderr_from=0)
    with pytest.raises(NotFoundError):
        await processes.send_signal(box, unknown, 9)
    with pytest.raises(NotFoundError):
        await inputs.write(box, unknown, pieces(b"x"))
    with pytest.raises(InvalidRequestError):
        await processes.send_signal(box, "../etc", 9)


@pytest.mark.parametrize(
    "spec",
    [
        ProcessSpec(("/nonexistent",)),
        ProcessSpec(("true",), cwd="/nonexistent"),
        ProcessSpec(("/etc/passwd",)),
        ProcessSpec(("true",), cwd="/etc/passwd"),
    ],
)
async def test_what_cannot_be_started_is_told_and_the_next_one_runs(box: Sandbox, spec: ProcessSpec) -> None:
    with pytest.raises(SandlotError) as failed:
        await processes.run(box, spec)
    assert failed.value.status < 500
    assert (await processes.run(box, sh("true"))).outcome.exit_code == 0


async def test_as_user_and_as_root(box: Sandbox) -> None:
    assert (await processes.run(box, sh("id -u"))).stdout.text() == "1000\n"
    assert (await processes.run(box, sh("id -u", user=User.ROOT))).stdout.text() == "0\n"


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


async def until_alive(box: Sandbox, word: str) -> None:
    await until(lambda: alive(box, word))


async def until_dead(box: Sandbox, word: str) -> None:
    async def dead() -> bool:
        return not await alive(box, word)

    await until(dead)


async def until_written(box: Sandbox, id_: str, content: bytes) -> None:
    async def written() -> bool:
        (known,) = [info for info in await processes.listing(box) if info.process == id_]
        return known.stdout_bytes >= len(content)

    await until(written)
