"""Number of processors that programs see in gVisor: that of the sandbox's limit. The machine inside has at least two."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.conformance.guest.conftest import SMALL, open_sandbox
from tests.support.driver_sandboxes import LIMITS, PIDS, GuestSession, driver_sandboxes, wake

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the host has one processor")

COMMANDS = (
    "nproc",
    "sudo nproc",
    "setsid -w nproc",
    "sh -c 'nproc & wait'",
    "script -qc nproc /dev/null | tr -d '\\r'",
    "python3 -c 'import os; print(len(os.sched_getaffinity(0)))'",
    "python3 -c 'import os, threading; threading.Thread(target=lambda: print(len(os.sched_getaffinity(0)))).start()'",
    "node -p 'os.availableParallelism()'",
)
CELLS = {
    "default": "import os, subprocess; print(len(os.sched_getaffinity(0)), subprocess.check_output('nproc', text=True), end='')",
    "bash": "echo $(nproc) $(nproc)",
    "javascript": "console.log(require('os').availableParallelism(), String(require('child_process').execSync('nproc')).trim())",
}
COUNT = "import os; print(len(os.sched_getaffinity(0)))"


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox with the time of one processor."""
    assert SMALL.processors == 1
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation="gvisor") as sandbox:
        yield sandbox


async def shown(inside: GuestSession, code: str, context: str = "default") -> str:
    """Return what a cell prints."""
    text, told, result = await inside.cell(code, kernel=context)
    assert result.status == "ok", told
    return text


@pytest.mark.parametrize("command", COMMANDS)
async def test_command_sees_the_processors_of_the_limit(inside: GuestSession, command: str) -> None:
    assert await inside.sh(command) == "1\n"


@pytest.mark.parametrize("context", CELLS)
async def test_cell_sees_the_processors_of_the_limit(inside: GuestSession, context: str) -> None:
    assert await shown(inside, CELLS[context], context) == "1 1\n"


async def test_new_number_is_seen_by_new_programs_and_by_running_kernels(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, isolation="gvisor") as inside:
        assert await shown(inside, COUNT) == "1\n"
        for number in (2, 1, 64):
            await inside.link.set_limits(pids=PIDS, processors=number)

            seen = f"{min(number, 2)}\n"
            assert await inside.sh("nproc") == seen
            assert await shown(inside, COUNT) == seen


async def test_program_that_has_chosen_its_processors_keeps_them(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, isolation="gvisor") as inside:
        await inside.link.set_limits(pids=PIDS, processors=2)
        await shown(inside, "import os; os.sched_setaffinity(0, {1})")

        await inside.link.set_limits(pids=PIDS, processors=1)

        assert await shown(inside, "print(os.sched_getaffinity(0))") == "{1}\n"


async def test_kernel_of_a_copy_sees_the_processors_of_the_copy(tmp_path: Path) -> None:
    """The spare kernel was prepared while the guest showed another number."""
    async with driver_sandboxes(tmp_path, "base") as here:
        source = await here.open()
        await wake(source, "sb-source")
        await source.link.set_limits(pids=PIDS, processors=2)
        await source.link.warm(lean=True)
        assert await source.sh("nproc") == "2\n"
        assert LIMITS.processors == 1
        (copy,) = await here.copies(source, 1)

        await wake(copy, "sb-copy")

        assert await copy.sh("nproc") == "1\n"
        assert await shown(copy, COUNT) == "1\n"
