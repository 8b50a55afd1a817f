"""Cells: variables that stay, exceptions, results, turns, and clients that go away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.core.execution import code
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import LimitError, SandboxEndedError
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import CellSpec
from tests.support.node import NodeState, open_node
from tests.support.service import Bench


async def test_cells_take_turns_and_waiting_does_not_use_their_timeout(at: Bench, sandbox: Sandbox) -> None:
    done = await asyncio.gather(
        *(at.node.code.run(OPERATOR, sandbox.id, CellSpec(f"import time; time.sleep(0.2); print({n})", timeout_s=1.4)) for n in range(8))
    )
    assert [each.stdout.text() for each in done] == [f"{n}\n" for n in range(8)]
    assert {each.outcome.status for each in done} == {"ok"}


async def test_disconnected_client_interrupts_only_its_own_cell(at: Bench, sandbox: Sandbox) -> None:
    await at.node.code.run(OPERATOR, sandbox.id, CellSpec("log = []"))
    first = asyncio.create_task(
        at.node.code.run(OPERATOR, sandbox.id, CellSpec("import time\nlog.append('first')\ntime.sleep(0.5)\nlog.append('done')"))
    )
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(at.node.code.run(OPERATOR, sandbox.id, CellSpec("log.append('never')")))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await first).outcome.status == "ok"
    endless = asyncio.create_task(at.node.code.run(OPERATOR, sandbox.id, CellSpec("log.append('endless')\nwhile True: pass", timeout_s=None)))
    await asyncio.sleep(0.2)
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    done = await at.node.code.run(OPERATOR, sandbox.id, CellSpec("print(log)"))
    assert done.stdout.text() == "['first', 'done', 'endless']\n"


async def test_end_of_the_sandbox_fails_running_and_waiting_cells(at: Bench, sandbox: Sandbox) -> None:
    cells = [asyncio.create_task(at.node.code.run(OPERATOR, sandbox.id, CellSpec("import time; time.sleep(100)"))) for _ in range(3)]
    await asyncio.sleep(0.2)
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    for cell in cells:
        with pytest.raises(SandboxEndedError):
            await cell


async def test_concurrent_starts_keep_to_the_limit_of_background_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "MAX_BACKGROUND", 3)
    state = NodeState(tmp_path)

    async def wait_for_ever(_: object) -> None:
        await asyncio.Event().wait()

    state.driver.scripts.cells["wait"] = wait_for_ever
    async with open_node(state) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))

        starts = [node.services.code.launch(OPERATOR, sandbox.id, CellSpec("wait", timeout_s=None)) for _ in range(5)]
        started = await asyncio.gather(*starts, return_exceptions=True)

        assert [type(each) for each in started if isinstance(each, BaseException)] == [LimitError, LimitError]
        assert len(node.services.code.executions.table.of(sandbox).live) == 3
