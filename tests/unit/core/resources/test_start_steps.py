"""Connect to the guest of a started instance: cancellation while the attempt is cleaned up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from sandlot.core.resources.start_steps import ExitedError, connect_guest
from sandlot.link.client import Link
from sandlot.link.turns import LinkTurns
from sandlot.model.ports import Exit, ExitReason, Instance
from sandlot.testing.memory.driver import MemoryInstance
from sandlot.testing.memory.guest import MemoryGuest, MemoryStream
from tests.support.node import NodeState, open_node, run_pending, settled
from tests.unit.core.pools.test_manager import NO_SNAPSHOTS, create_pool

TURNS = 20
"""Turns of the event loop in which a cancellation is tried: more than a link takes to open and to close."""


class LateInstance:
    """An instance whose guest is reached only when the attempt to connect is cancelled.

    Attributes:
        cancelled: Event that is set when the attempt is cancelled.
        stream: Stream to the guest; None until the attempt is cancelled.
    """

    def __init__(self, guest: MemoryGuest) -> None:
        self._guest = guest
        self.cancelled = asyncio.Event()
        self.stream: MemoryStream | None = None

    async def connect(self) -> MemoryStream:
        """Wait until the caller is cancelled. Then return a stream to the guest all the same, three turns later."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
        await turns(3)
        self.stream = self._guest.connect()
        return self.stream

    @property
    def is_closed(self) -> bool:
        """True if the guest was reached and the link to it is closed again."""
        return self.stream is not None and self.stream.is_closed


async def turns(count: int) -> None:
    """Let the event loop run for some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def connecting() -> tuple[LateInstance, asyncio.Task[Link]]:
    """Start to connect to the guest of an instance whose processes then end. Return when the attempt is cancelled and the link is about to open."""
    instance, exited = LateInstance(MemoryGuest()), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(connect_guest(cast("Instance", instance), exited, {}, LinkTurns()))
    await run_pending()
    exited.set_result(Exit(ExitReason.CRASHED, "status 1"))
    await instance.cancelled.wait()
    return instance, task


async def test_late_link_is_closed() -> None:
    instance, task = await connecting()
    with pytest.raises(ExitedError, match="status 1"):
        await task
    assert instance.is_closed


@pytest.mark.parametrize("turn", range(TURNS))
async def test_cancellation_while_a_late_link_closes_is_not_lost(turn: int) -> None:
    instance, task = await connecting()
    await turns(turn)
    has_ended = task.done()
    task.cancel()
    await asyncio.wait({task})
    assert has_ended or task.cancelled(), f"the cancelled task has raised {task.exception()!r}"
    assert instance.is_closed


async def test_turns_cover_the_whole_cleanup() -> None:
    _, task = await connecting()
    await turns(TURNS)
    with pytest.raises(ExitedError):
        task.result()


async def test_evicted_fill_records_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fill is evicted at the moment when the end of its sandbox has already ended the attempt to connect."""
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS)) as node:
        late, refiller = LateInstance(MemoryGuest()), node.services.pools._refiller  # noqa: SLF001 - evictions have no other entry
        monkeypatch.setattr(MemoryInstance, "connect", lambda _: late.connect())
        pool = await create_pool(node, warm=1)
        node.clock.advance(1.0)
        await settled(lambda: bool(pool.filling) and bool(node.driver.booted))
        await run_pending()
        node.driver.booted[0].crash()
        await late.cancelled.wait()
        assert refiller.evict_next() is not None
        await settled(lambda: not pool.filling)
        assert (pool.failures, pool.error) == (0, "")
