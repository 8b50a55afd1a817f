"""Who is using what is kept: what is deleted meanwhile stays on the disk until the last of them is done.

Law: Between the look whether something is there and the use of it nobody comes: both are one step of the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


class FolderLeases:
    """The uses of some things, by their ids.

    Args:
        remove: Removes what there is of one; called once nobody uses it any more.
        spawn: Begins a work that nobody waits for.
    """

    def __init__(self, remove: Callable[[str], Coroutine[Any, Any, None]], spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._remove = remove
        self._spawn = spawn
        self._users: Counter[str] = Counter()
        self._gone: set[str] = set()

    def is_gone(self, id_: str) -> bool:
        """Whether it was deleted, and waits for those who use it."""
        return id_ in self._gone

    @contextmanager
    def of(self, id_: str) -> Iterator[None]:
        """Around a use of one."""
        self._users[id_] += 1
        try:
            yield
        finally:
            self._users[id_] -= 1
            self._settle(id_)

    def delete(self, id_: str) -> None:
        """Nobody may begin to use it from now on; it is removed once those are done who have begun. Idempotent."""
        self._gone.add(id_)
        self._settle(id_)

    def _settle(self, id_: str) -> None:
        if self._users[id_] > 0:
            return
        del self._users[id_]
        if id_ in self._gone:
            self._spawn(self._removed(id_))

    async def _removed(self, id_: str) -> None:
        await self._remove(id_)
        self._gone.discard(id_)
