"""Processes that are started again."""

from __future__ import annotations

import pytest

from sandlot.core import notes
from sandlot.core.runs import processes
from sandlot.core.runs.again import restarting
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.specs import ProcessSpec
from tests.support.until import until


async def test_what_runs_is_killed_and_the_same_begins_anew(box: Sandbox) -> None:
    spec = ProcessSpec(("sh", "-c", 'echo "$A"; pwd; exec sleep 1000'), env={"A": "again"}, cwd="/tmp", tag="mine", timeout_s=None)
    first, first_pid = await processes.launch(box, spec)
    second, second_pid = await restarting.restart(box, first)
    assert first != second
    assert first_pid != second_pid
    assert (await processes.look(box, first)).signal == 9
    assert notes.of(box, second).spec == spec

    async def has_written() -> bool:
        return (await processes.kept(box, second, stdout_from=None, stderr_from=None))[1].text() == "again\n/tmp\n"

    await until(has_written)
    await processes.send_signal(box, second, 9)
    await processes.wait(box, second)
    third, _ = await restarting.restart(box, second)
    assert (await processes.look(box, third)).running
    await processes.send_signal(box, third, 9)


async def test_what_is_not_known_any_more_is_left_alone(box: Sandbox) -> None:
    process, _ = await processes.launch(box, ProcessSpec(("sleep", "1000"), timeout_s=None))
    notes.forget(box)
    with pytest.raises(ConflictError):
        await restarting.restart(box, process)
    assert (await processes.look(box, process)).running
    await processes.send_signal(box, process, 9)
    with pytest.raises(NotFoundError):
        await restarting.restart(box, "0" * 32)
