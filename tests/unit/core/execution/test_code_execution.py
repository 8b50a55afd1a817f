"""Followers of a cell: several clients, clients that come back, and none."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.core.execution import execution
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.executions import CodeEnded, ExecutionOptions
from sandlot.model.ids import new_process_id
from sandlot.model.specs import CellSpec
from sandlot.sdk import retries
from tests.support.service import Bench
from tests.support.until import until

SLOW = CellSpec("import time\nfor n in range(8):\n    print(n, flush=True)\n    time.sleep(0.1)\nprint('end')", timeout_s=None)
ENDLESS = CellSpec("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.1)", timeout_s=None)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.3)


@pytest.mark.usefixtures("short")
async def test_cell_goes_on_for_a_second_client_after_the_first_one_left(at: Bench, sandbox: Sandbox) -> None:
    id_ = new_process_id()
    first = await at.node.code.start(sandbox, SLOW, ExecutionOptions(id=id_))
    second = asyncio.create_task(at.node.code.run(OPERATOR, sandbox.id, SLOW, ExecutionOptions(id=id_)))
    running = at.node.code.executions.get(sandbox, id_)
    assert running is not None
    await until(lambda: len(running.clients) == 2)
    await first.close()
    done = await second
    assert (done.outcome.status, done.stdout.text().splitlines()[-1]) == ("ok", "end")
    await until(lambda: not at.node.code.executions.table.of(sandbox).live)
    await until(lambda: sandbox.activity.held == 0)
    record = await at.node.history.execution(OPERATOR, id_)
    assert (record.status, record.stdout) == ("ok", done.stdout.text())


@pytest.mark.usefixtures("short")
async def test_cell_goes_on_while_a_client_only_reads_it(at: Bench, sandbox: Sandbox) -> None:
    id_ = new_process_id()
    first = await at.node.code.start(sandbox, SLOW, ExecutionOptions(id=id_))
    followed = await at.node.code.follow(OPERATOR, sandbox.id, id_)
    await first.close()
    *_, last = [event async for event in followed]
    assert isinstance(last, CodeEnded)
    assert last.status.status == "ok"


@pytest.mark.usefixtures("short")
async def test_cell_is_interrupted_when_no_client_comes_back(at: Bench, sandbox: Sandbox) -> None:
    await at.node.code.run(OPERATOR, sandbox.id, CellSpec("0"))  # an interrupt strikes a kernel that has started
    id_ = new_process_id()
    first, second = [await at.node.code.start(sandbox, ENDLESS, ExecutionOptions(id=id_)) for _ in range(2)]
    await second.close()
    await first.close()
    await until(lambda: not at.node.code.executions.table.of(sandbox).live)
    done = await at.node.code.read(OPERATOR, sandbox.id, id_, wait_s=None)
    assert done.outcome.status == "error"
    await until(lambda: sandbox.activity.held == 0)
    assert (await at.node.history.execution(OPERATOR, id_)).status == "killed"


async def test_cell_without_an_id_of_the_client_is_interrupted_at_once(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 3600.0)
    running = await at.node.code.start(sandbox, ENDLESS)
    await running.close()
    assert (await at.node.code.read(OPERATOR, sandbox.id, running.id, wait_s=None)).outcome.status in {"error", "aborted"}


async def test_joined_cell_is_counted_and_logged_once(at: Bench, sandbox: Sandbox) -> None:
    assert at.service.internals.execution_counter is not None
    id_, before = new_process_id(), at.service.internals.execution_counter.used(sandbox.owner)
    first, second = await asyncio.gather(*(at.node.code.run(OPERATOR, sandbox.id, SLOW, ExecutionOptions(id=id_)) for _ in range(2)))
    third = await at.node.code.run(OPERATOR, sandbox.id, SLOW, ExecutionOptions(id=id_))
    assert first.stdout.text() == second.stdout.text() == third.stdout.text()
    assert at.service.internals.execution_counter.used(sandbox.owner) == before + 1
    waiting = new_process_id()
    assert [await at.node.code.launch(OPERATOR, sandbox.id, CellSpec("1"), ExecutionOptions(id=waiting)) for _ in range(2)] == [waiting] * 2
    await until(lambda: not at.node.code.executions.table.of(sandbox).live)
    assert await at.node.code.launch(OPERATOR, sandbox.id, CellSpec("1"), ExecutionOptions(id=waiting)) == waiting
    assert at.service.internals.execution_counter.used(sandbox.owner) == before + 2
    page = (await at.node.history.executions(OPERATOR)).items
    assert sorted((str(each.id), each.status) for each in page) == sorted([(str(id_), "ok"), (str(waiting), "ok")])


def test_clients_repeat_a_call_before_its_cell_is_interrupted() -> None:
    waits_s = [retries.cut_wait_s(tries, once=True, luck=0.0) or 0.0 for tries in range(1, retries.MAX_TRIES)]
    assert waits_s == sorted(waits_s)
    assert sum(waits_s[:2]) < execution.AWAY_S, "a connection broke, and the service is there"
    assert max(waits_s) < execution.BACK_S, "the service was started again, and the client may just have begun its longest wait"
