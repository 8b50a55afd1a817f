"""What is deleted while it is used stays until the last one who uses it is done, and nobody begins to use it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from sandlot.core.saved.uses import Uses


class Shelf:
    """Where the things are."""

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.uses = Uses(self.remove, self.spawn)

    async def remove(self, id_: str) -> None:
        self.removed.append(id_)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def settled(self) -> list[str]:
        await asyncio.gather(*self.tasks)
        return self.removed


async def test_what_nobody_uses_is_removed_at_once() -> None:
    shelf = Shelf()
    shelf.uses.delete("one")
    assert shelf.uses.is_gone("one")
    assert await shelf.settled() == ["one"]
    assert not shelf.uses.is_gone("one"), "nothing is kept of what is removed"


async def test_what_is_used_is_removed_after_the_last_use_and_once() -> None:
    shelf = Shelf()
    first, second = shelf.uses.of("one"), shelf.uses.of("one")
    first.__enter__()
    second.__enter__()
    shelf.uses.delete("one")
    shelf.uses.delete("one")
    first.__exit__(None, None, None)
    assert await shelf.settled() == []
    assert shelf.uses.is_gone("one")
    second.__exit__(None, None, None)
    assert await shelf.settled() == ["one"]


async def test_uses_of_one_are_nothing_to_another() -> None:
    shelf = Shelf()
    with shelf.uses.of("one"):
        shelf.uses.delete("other")
        assert await shelf.settled() == ["other"]
    assert await shelf.settled() == ["other"]
