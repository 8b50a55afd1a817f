"""Memory that a kernel shares with others: whoever is killed for it, its end says so."""

from __future__ import annotations

from pathlib import Path

from sandlot.model.executions import Output
from sandlot.model.ids import new_context_id
from sandlot.model.specs import CellSpec, ProcessSpec
from tests.conformance.guest.conftest import SMALL, open_sandbox

GREEDY = "l = []\nwhile True: l.append(b'z' * (1 << 20))"


async def test_command_that_the_guest_kills_for_memory_has_the_reason_oom(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, isolation="gvisor", limits=SMALL) as inside:
        cell = await inside.link.kernels.execute(CellSpec("import time\nprint('on', flush=True)\nfor n in range(600): time.sleep(0.1)"))
        async for item in cell:  # memory is looked after while a cell runs
            if isinstance(item, Output):
                break
        command = await inside.link.processes.start(ProcessSpec(("python3", "-c", GREEDY), timeout_s=60))
        result = await command.result()
        assert (result.reason, result.signal) == ("oom", 9)
        assert await inside.link.kernels.interrupt(execution=cell.id)
        assert (await cell.result()).status == "error"


async def test_kernel_that_is_killed_with_a_third_of_the_memory_has_the_status_oom(tmp_path: Path) -> None:
    """It need not have half of it: here others have the rest."""
    async with open_sandbox(tmp_path, isolation="container", limits=SMALL) as inside:
        for share in ("h = b'z' * (130 << 20)", "h = b'z' * (120 << 20)"):
            holder = await inside.link.kernels.create(new_context_id(), "python")
            assert (await (await inside.link.kernels.execute(CellSpec(share, context=holder.kernel))).result()).status == "ok"
        greedy = await inside.link.kernels.create(new_context_id(), "python")
        assert (await (await inside.link.kernels.execute(CellSpec(GREEDY, context=greedy.kernel))).result()).status == "oom"
        lone = await inside.link.kernels.execute(CellSpec("import os; os.kill(os.getpid(), 9)", context=greedy.kernel))
        assert (await lone.result()).status == "died", "nobody was out of memory"
