"""Sandboxes by their names, with the application and a node in memory."""

from __future__ import annotations

import asyncio

import httpx

from sandlot import AsyncClient, AsyncSandbox
from tests.support.service import Bench
from tests.support.serving import at, folder, http

__all__ = ["at", "folder", "http"]

CALLERS = 100


async def test_one_of_a_hundred_racing_callers_creates_the_sandbox(at: Bench, http: httpx.AsyncClient) -> None:  # noqa: ARG001 - serves
    async with AsyncClient(url=f"unix://{at.service.settings.socket}") as client:
        found = await asyncio.gather(*(AsyncSandbox.get_or_create("mine", "base", client=client) for _ in range(CALLERS)))
        assert len({sandbox.id for sandbox in found}) == 1
        assert [sandbox.was_created for sandbox in found].count(True) == 1
        await found[0].pause()
        again = await AsyncSandbox.get_or_create("mine", client=client)
        assert (again.id, again.was_created, (await again.info()).state) == (found[0].id, False, "running")
        await again.kill()
        async with AsyncSandbox.get_or_create("mine", "base", client=client) as new:
            assert (new.was_created, new.id != again.id) == (True, True)
