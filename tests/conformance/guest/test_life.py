"""A guest's life: rest and another waking, its deadline, and its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.link.types import LinkClosedReason
from sandlot.model.errors import SandlotError
from sandlot.model.executions import Display, Output
from sandlot.model.ports import ExitReason
from sandlot.model.specs import Limits, ProcessSpec, shell_argv
from tests.conformance.guest.conftest import open_sandbox


async def test_quiesced_guest_serves_only_a_wake(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, isolation="gvisor") as inside:
        await inside.cell("import os, random\nkept = 'kept'")
        process = await inside.link.processes.start(ProcessSpec(shell_argv("while :; do echo tick; sleep 0.05; done"), timeout_s=None))
        await inside.link.quiesce()
        with pytest.raises(SandlotError):
            await inside.link.info()
        with pytest.raises(SandlotError):
            await process.result()
        await inside.link.wake(identity="sb-another", hostname="another", env={"LIFE": "two"}, pids=64, deadline_s=600)
        assert (await inside.link.info()).identity == "sb-another"
        assert await inside.sh("hostname; echo $LIFE") == "another\ntwo\n"
        _, told, _ = await inside.cell("kept, os.environ['LIFE']")
        assert isinstance(told[0], Display)
        assert told[0].data["text/plain"] == "('kept', 'two')"
        again = await inside.link.processes.attach(process.id)
        async for item in again:
            assert isinstance(item, Output)
            assert b"tick" in item.data
            break
        assert await inside.link.processes.signal(process.id, 9)


async def test_guest_ends_at_its_deadline_without_the_service(tmp_path: Path, isolation: str) -> None:
    async with open_sandbox(tmp_path, isolation=isolation) as inside:
        await inside.link.set_deadline(1000)
        await inside.link.set_deadline(0.2)
        assert (await inside.instance.wait()).reason is ExitReason.EXITED
        assert (await inside.link.wait_closed()).reason is LinkClosedReason.EOF


async def test_guest_with_little_memory_works_and_ends_with_all_processes_when_asked(tmp_path: Path, isolation: str) -> None:
    async with open_sandbox(tmp_path, isolation=isolation, limits=Limits(memory_bytes=96 << 20, disk_bytes=32 << 20, pids=32)) as inside:
        assert await inside.sh("echo small") == "small\n"
        await inside.link.processes.start(ProcessSpec(shell_argv("trap '' TERM; sleep 300"), timeout_s=None))
        await inside.link.shutdown()
        assert (await inside.instance.wait()).reason is ExitReason.EXITED
