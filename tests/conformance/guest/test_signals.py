"""Signals that are ignored where the service was started, as in a shell's background job, are not ignored by programs in a sandbox."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.conformance.guest.conftest import open_sandbox

IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""Signals that shells and nohup(1) set to be ignored."""


async def test_programs_do_not_inherit_ignored_signals_of_the_service(tmp_path: Path, isolation: str) -> None:
    dispositions = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    try:
        async with open_sandbox(tmp_path, isolation=isolation) as inside:
            results = [(await inside.run("sh", "-c", f"kill -{int(number)} $$"))[2] for number in IGNORED]
            numbers = [int(number) for number in IGNORED]
            cell = f"import subprocess; print([subprocess.run(['sh', '-c', f'kill -{{number}} $$']).returncode for number in {numbers}])"
            printed, _, _ = await inside.cell(cell)
    finally:
        for number, disposition in dispositions.items():
            signal.signal(number, disposition)
    assert [result.signal for result in results] == numbers
    assert printed == f"{[-number for number in numbers]}\n"
