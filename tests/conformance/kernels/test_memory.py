"""Commands and kernels that fill the memory: the process is killed, its end says so, and the sandbox continues."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from sandlot.model.executions import Output
from sandlot.model.ids import new_context_id
from sandlot.model.specs import CellSpec, ProcessSpec
from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import GuestSession
from tests.support.until import until

GREEDY = "l = []\nwhile True: l.append(b'z' * (1 << 20))"


FORKS = "import os, time\nfor n in range(24):\n    if not os.fork():\n        l = b'z' * (16 << 20)\n        time.sleep(60)\ntime.sleep(60)"


@pytest.fixture(scope="module")
async def gvisor(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A gVisor sandbox that tests share."""
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation="gvisor", limits=SMALL) as inside:
        yield inside


@pytest.mark.parametrize("argv", [("python3", "-c", GREEDY), ("tail", "/dev/zero"), ("python3", "-c", FORKS)])
async def test_command_that_fills_the_memory_is_killed_with_a_message(gvisor: GuestSession, argv: tuple[str, ...]) -> None:
    command = await gvisor.link.processes.start(ProcessSpec(argv, timeout_s=60))
    text = "".join([item.data.decode() async for item in command if isinstance(item, Output)])
    result = await command.result()
    assert (result.reason, result.signal) == ("oom", 9)
    assert "was killed" in text
    assert await gvisor.sh("echo on") == "on\n"


@pytest.mark.parametrize("size", [None, 80])
async def test_child_of_a_command_that_fills_the_memory_is_killed_with_a_message(gvisor: GuestSession, size: int | None) -> None:
    command = await gvisor.link.processes.start(ProcessSpec(("sh", "-c", "setsid -w tail /dev/zero; echo after"), timeout_s=60, rows=size, cols=size))
    text = "".join([item.data.decode() async for item in command if isinstance(item, Output)])
    assert (await command.result()).exit_code == 0
    assert "was killed" in text
    assert "after" in text


async def test_process_in_the_background_that_fills_the_memory_is_killed(gvisor: GuestSession) -> None:
    await gvisor.sh("(sleep 0.5; tail /dev/zero; echo $? >/workspace/status) >/dev/null 2>&1 &")

    async def has_ended() -> bool:  # without a command, during which memory is measured more often
        listing = await gvisor.link.files.list("/workspace")
        return any(entry.path.endswith("status") and entry.size for entry in listing.entries)

    await until(has_ended)
    assert await gvisor.sh("cat /workspace/status") == "137\n"


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
