"""Turns of the requests that begin: in each turn of the event loop one request begins, of each key in turn.

Without turns, all requests that have arrived begin at once, and each waits for the work of all others: those of a key with hundreds of connections
would hold up those of all other keys.
"""

from __future__ import annotations

import asyncio
from collections import deque

from sandlot.model.access import OwnerId


class RequestTurns:
    """Requests that wait to begin."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        """True until the next turn of the loop, and while requests wait."""
        self._waiting: dict[OwnerId | None, deque[asyncio.Future[None]]] = {}
        """Owners in the order of their turns -> waiting requests."""

    async def take(self, owner: OwnerId | None) -> None:
        """Wait until it is the turn of a request. The first request in a turn of the loop does not wait.

        Args:
            owner: Owner of the key of the request. None: the request has no key.
        """
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next)
            return
        begins: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(owner, deque()).append(begins)
        await begins

    def _next(self) -> None:
        self._is_taken = self._begin_one()
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._next)

    def _begin_one(self) -> bool:
        while self._waiting:
            owner, requests = next(iter(self._waiting.items()))
            del self._waiting[owner]
            begins = requests.popleft()
            if requests:
                self._waiting[owner] = requests  # after all other owners
            if not begins.done():  # otherwise its client has left
                begins.set_result(None)
                return True
        return False
