"""Connect to the guest of a started instance: cancellation while the attempt is cleaned up."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.resources.start_steps import ExitedError, connect_guest
from sandlot.model.ports import Exit, ExitReason
from tests.support.node import NodeState, open_node, run_pending, settled
from tests.unit.core.pools.test_manager import NO_SNAPSHOTS, create_pool

TURNS = 12
"""Turns of the event loop in which a cancellation is tried: more than a closing link takes."""


class SilentInstance:
    """An instance that is connected at once. Its guest never responds, or responds too late."""

    async def connect(self) -> None:
        """Return a stream that nothing reads."""


class LateLinks:
    """Factory of a link that is opened only when the attempt to connect is cancelled, and takes three turns to close.

    Attributes:
        closing: Event that is set when the attempt is cancelled.
        is_closed: True once the late link is closed.
    """

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        self.is_closed = False

    async def __call__(self, _stream: Any, *, services: Any) -> Any:  # noqa: ANN401 - a link
        del services
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.closing.set()
        await turns(3)
        return self

    async def aclose(self) -> None:
        """Close the link."""
        await turns(3)
        self.is_closed = True


async def turns(count: int) -> None:
    """Let the event loop run for some turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def connecting(links: LateLinks) -> asyncio.Task[Any]:
    """Start to connect to the guest of an instance whose processes then end. Return when the late link is about to be closed."""
    exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(connect_guest(SilentInstance(), exited, links, {}))  # type: ignore[arg-type]
    await run_pending()
    exited.set_result(Exit(ExitReason.CRASHED, "status 1"))
    await links.closing.wait()
    return task


async def test_late_link_is_closed() -> None:
    links = LateLinks()
    with pytest.raises(ExitedError, match="status 1"):
        await (await connecting(links))
    assert links.is_closed


@pytest.mark.parametrize("turn", range(TURNS))
async def test_cancellation_while_a_late_link_closes_is_not_lost(turn: int) -> None:
    links = LateLinks()
    task = await connecting(links)
    await turns(turn)
    has_ended = task.done()
    task.cancel()
    await asyncio.wait({task})
    assert has_ended or task.cancelled(), f"the cancelled task has raised {task.exception()!r}"
    assert links.is_closed


async def test_turns_cover_the_whole_cleanup() -> None:
    task = await connecting(LateLinks())
    await turns(TURNS)
    with pytest.raises(ExitedError):
        task.result()


async def test_evicted_fill_records_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fill is evicted at the moment when the end of its sandbox has already ended the attempt to connect."""
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS)) as node:
        links, refiller = LateLinks(), node.services.pools._refiller  # noqa: SLF001 - the only way to replace the links of one node
        monkeypatch.setattr(refiller, "_link_factory", links)
        pool = await create_pool(node, warm=1)
        node.clock.advance(1.0)
        await settled(lambda: bool(pool.filling) and bool(node.driver.booted))
        await run_pending()
        node.driver.booted[0].crash()
        await links.closing.wait()
        assert refiller.evict_next() is not None
        await settled(lambda: not pool.filling)
        assert (pool.failures, pool.error) == (0, "")
