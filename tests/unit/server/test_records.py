"""What a service writes down, when it stops while its store does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.model.access import LOCAL
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.server import records
from sandlot.store.engine import finish
from tests.support.service import bench
from tests.support.until import until


async def test_a_store_that_does_not_answer_keeps_no_service_from_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LAST_WRITE_S", 0.2)
    answers, asked = asyncio.Event(), asyncio.Event()
    before = asyncio.all_tasks()

    async def hang(*_: object) -> None:
        asked.set()
        await finish(answers.wait())  # as a transaction that was begun: no cancellation ends it
        raise UnavailableError("The database does not answer.", code=ErrorCode.SERVICE_UNAVAILABLE)

    async with asyncio.timeout(60):
        async with bench(tmp_path) as at:
            monkeypatch.setattr(at.service.store.executions, "count", hang)
            with at.service.core.execution_counter.count(LOCAL):
                pass
            await asked.wait()
        answers.set()
        await until(lambda: asyncio.all_tasks() <= before)
