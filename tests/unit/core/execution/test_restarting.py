"""Processes that are started again."""

from __future__ import annotations

import pytest

from sandlot.core.execution import process_details, processes
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.specs import ProcessSpec
from tests.support.until import until


async def test_what_runs_is_killed_and_the_same_begins_anew(sandbox: Sandbox) -> None:
    spec = ProcessSpec(("sh", "-c", 'echo "$A"; pwd; exec sleep 1000'), env={"A": "again"}, cwd="/tmp", tag="mine", timeout_s=None)
    first, first_pid = await processes.launch(sandbox, spec)
    second, second_pid = await processes.restart(sandbox, first)
    assert first != second
    assert first_pid != second_pid
    assert (await processes.look(sandbox, first)).signal == 9
    assert process_details.of(sandbox, second).spec == spec

    async def has_written() -> bool:
        return (await processes.kept(sandbox, second, stdout_from=None, stderr_from=None))[1].text() == "again\n/tmp\n"

    await until(has_written)
    await processes.send_signal(sandbox, second, 9)
    await processes.wait(sandbox, second)
    third, _ = await processes.restart(sandbox, second)
    assert (await processes.look(sandbox, third)).running
    await processes.send_signal(sandbox, third, 9)


async def test_what_is_not_known_any_more_is_left_alone(sandbox: Sandbox) -> None:
    process, _ = await processes.launch(sandbox, ProcessSpec(("sleep", "1000"), timeout_s=None))
    process_details.forget(sandbox)
    with pytest.raises(ConflictError):
        await processes.restart(sandbox, process)
    assert (await processes.look(sandbox, process)).running
    await processes.send_signal(sandbox, process, 9)
    with pytest.raises(NotFoundError):
        await processes.restart(sandbox, "0" * 32)
