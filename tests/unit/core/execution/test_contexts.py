"""Contexts: created, listed, restarted, removed; cells in the background, followed, and known to the next service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, UnsupportedError
from sandlot.model.executions import CodeEnded, CodePosition, CodeResult, Display, Output
from sandlot.model.specs import CellSpec
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.service import BASE, Bench, serving
from tests.support.until import until

GATE = "import os, time\nwhile not os.path.exists('/tmp/gate'): time.sleep(0.02)\n"
OPEN = "open('/tmp/gate', 'w').close()"


async def done(node: Node, sandbox: Sandbox, execution: str) -> CodeResult:
    return await node.code.read(OPERATOR, sandbox.id, execution, wait_s=None)


async def test_context_is_created_listed_used_restarted_and_removed(at: Bench, sandbox: Sandbox) -> None:
    made = await at.node.contexts.create(OPERATOR, sandbox.id, "python3", cwd="/tmp", env={"WHICH": "mine"})
    assert (made.language, made.cwd) == ("python", "/tmp")
    ran = await at.node.code.run(OPERATOR, sandbox.id, CellSpec("import os; kept = 1; print(os.getcwd(), os.environ['WHICH'])", context=made.id))
    assert ran.stdout.text() == "/tmp mine\n"
    known = await at.node.contexts.get(OPERATOR, sandbox.id, made.id)
    assert (known.state, known.execution_count) == ("idle", 1)
    assert known.pid
    assert made.id in {context.id for context in await at.node.contexts.list(OPERATOR, sandbox.id)}
    await at.node.contexts.restart(OPERATOR, sandbox.id, made.id)
    failed = await at.node.code.run(OPERATOR, sandbox.id, CellSpec("kept", context=made.id, language=None))
    assert failed.error is not None
    assert failed.error.name == "NameError"
    assert not await at.node.contexts.interrupt(OPERATOR, sandbox.id, made.id), "nothing runs"
    await at.node.contexts.delete(OPERATOR, sandbox.id, made.id)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: at.node.contexts.get(OPERATOR, sandbox.id, made.id),
        lambda: at.node.contexts.restart(OPERATOR, sandbox.id, made.id),
        lambda: at.node.contexts.delete(OPERATOR, sandbox.id, made.id),
        lambda: at.node.contexts.interrupt(OPERATOR, sandbox.id, made.id),
        lambda: at.node.code.run(OPERATOR, sandbox.id, CellSpec("1", context=made.id)),
        lambda: at.node.code.start(sandbox, CellSpec("1", context=made.id)),
        lambda: at.node.code.launch(OPERATOR, sandbox.id, CellSpec("1", context=made.id)),
        lambda: at.node.contexts.get(OPERATOR, sandbox.id, "no id of one"),
    ]
    for call in calls:
        with pytest.raises(NotFoundError) as refused:
            await call()
        assert refused.value.code is ErrorCode.CONTEXT_NOT_FOUND


@pytest.mark.real_guest
async def test_each_language_has_its_own_default_context(at: Bench, sandbox: Sandbox) -> None:
    await at.node.code.run(OPERATOR, sandbox.id, CellSpec("x=from-bash", language="sh"))
    assert (await at.node.code.run(OPERATOR, sandbox.id, CellSpec("echo $x", language="bash"))).stdout.text() == "from-bash\n"
    await at.node.code.run(OPERATOR, sandbox.id, CellSpec("let x = 'from js'", language="js"))
    assert (await at.node.code.run(OPERATOR, sandbox.id, CellSpec("console.log(x)", language="javascript"))).stdout.text() == "from js\n"
    assert {context.id for context in await at.node.contexts.list(OPERATOR, sandbox.id)} >= {"bash", "javascript"}
    with pytest.raises(ConflictError):
        await at.node.code.run(OPERATOR, sandbox.id, CellSpec("1", language="python", context="bash"))


@pytest.mark.real_guest
async def test_language_that_the_image_lacks_is_refused(at: Bench, sandbox: Sandbox) -> None:
    with pytest.raises(UnsupportedError, match=r"Node\.js"):
        await at.node.contexts.create(OPERATOR, sandbox.id, "javascript", env={"PATH": "/nowhere"})


@pytest.mark.real_guest
async def test_next_service_finds_contexts_and_executions_unchanged(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(OPERATOR, BASE)
        mine = (await first.node.contexts.create(OPERATOR, sandbox.id, "python")).id
        await first.node.code.run(OPERATOR, sandbox.id, CellSpec("kept = 41", context=mine))
        running = await first.node.code.launch(
            OPERATOR, sandbox.id, CellSpec(f"print('begun')\n{GATE}print('over'); kept + 1", context=mine, timeout_s=None)
        )
        waiting = await first.node.code.launch(OPERATOR, sandbox.id, CellSpec("print('its turn')", context=mine))

        async def has_begun() -> bool:
            return (await first.node.code.read(OPERATOR, sandbox.id, running)).stdout.text() == "begun\n"

        await until(has_begun)
    async with serving(tmp_path, driver) as second:
        again = second.internals.registry.find(sandbox.id, OPERATOR)
        assert (await second.node.contexts.get(OPERATOR, again.id, mine)).state == "busy"
        follower = await second.node.code.follow(OPERATOR, again.id, running, CodePosition(events=1, stdout=len("begun\n")))
        await second.node.code.run(OPERATOR, again.id, CellSpec(OPEN))
        told = [event async for event in follower]
        assert isinstance(told[-1], CodeEnded)
        assert told[-1].status.status == "ok"
        assert [event.data for event in told if isinstance(event, Output)] == [b"over\n"]
        assert [event.data["text/plain"] for event in told if isinstance(event, Display)] == ["42"]
        assert (await done(second.node, again, waiting)).stdout.text() == "its turn\n"

        async def is_logged() -> bool:
            return (await second.node.history.execution(OPERATOR, running)).status != "running"

        await until(is_logged)
        record = await second.node.history.execution(OPERATOR, running)
        assert (record.status, record.stdout) == ("ok", "begun\nover\n")


@pytest.mark.parametrize("named", [False, True])
async def test_context_of_a_cancelled_create_stays_only_if_the_create_can_be_repeated(at: Bench, sandbox: Sandbox, named: bool) -> None:  # noqa: FBT001 - a parameter
    chosen = "ctx-0123456789abcdef" if named else None
    making = asyncio.create_task(at.node.contexts.create(OPERATOR, sandbox.id, "python", id=chosen))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # it is on its way to the guest
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    await until(lambda: not sandbox.tasks or named)
    await asyncio.sleep(0.05)
    assert {context.id for context in await at.node.contexts.list(OPERATOR, sandbox.id)} - {"default"} == ({chosen} if named else set())
