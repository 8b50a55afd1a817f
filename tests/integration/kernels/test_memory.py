"""Memory that a kernel shares with others: whoever is killed for it, its end says so."""

from __future__ import annotations

from pathlib import Path

from sandlot.model.specs import ProcessSpec
from tests.integration.guest.conftest import SMALL, open_sandbox

GREEDY = "l = []\nwhile True: l.append(b'z' * (1 << 20))"


async def test_a_command_that_the_guest_kills_for_memory_is_told_as_such(tmp_path: Path) -> None:
    async with open_sandbox(tmp_path, isolation="gvisor", limits=SMALL) as inside:
        cell = await inside.link.execute("import time\nfor n in range(600): time.sleep(0.1)")  # memory is looked after while a cell runs
        command = await inside.link.start(ProcessSpec(("python3", "-c", GREEDY), timeout_s=60))
        result = await command.result()
        assert (result.reason, result.signal) == ("oom", 9)
        assert await inside.link.interrupt(execution=cell.id)
        assert (await cell.result()).status == "error"
