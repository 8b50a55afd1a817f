"""The cell of a session at a terminal, and Ctrl-C at every moment of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from sandlot.cli.repl.session import CellOptions, CellRunner
from sandlot.sdk.converter import structure
from sandlot.sdk.models.code import Execution

DONE = structure(Execution, {"id": "e1", "status": "error", "stdout": "", "stderr": "", "results": [], "execution_count": 1, "duration_s": 0.1})


class Handle:
    """A cell that ends when it is interrupted."""

    result: Execution | None = None

    def __init__(self) -> None:
        self.interrupted = asyncio.Event()

    async def interrupt(self) -> bool:
        self.interrupted.set()
        return True

    async def __aiter__(self) -> AsyncIterator[Execution]:
        await self.interrupted.wait()
        self.result = DONE
        yield DONE


class Box:
    """A sandbox whose service takes its time to answer; meanwhile somebody presses Ctrl-C."""

    def __init__(self, running: CellRunner) -> None:
        self.running = running

    async def run_code(self, *_: Any, **__: Any) -> Handle:  # noqa: ANN401
        self.running.interrupt()
        return Handle()


async def test_a_press_before_the_service_has_answered_interrupts_the_cell(tmp_path: Path) -> None:
    running = CellRunner()
    async with asyncio.timeout(60):
        done = await running.run(Box(running), "x", CellOptions(save_dir=tmp_path))  # type: ignore[arg-type]
    assert done is DONE
