"""Turns of the requests that begin: in each turn of the event loop one request begins, of each key in turn. Pauses of large responses.

Without turns, all requests that have arrived begin at once, and each waits for the work of all others: those of a key with hundreds of connections
would hold up those of all other keys.

With turns alone, a key that always has a request waiting would use all of the service's processor time, and each step of another key's request
would wait for a step of its requests. So while several keys are active, each gets a share of the time. What a request will cost is not known: the
median of the latest requests is taken, and more for a large body. What is sent to a client counts as well, and a response pauses for the share of
its key. A key that is alone does not wait. Requests without a key count as those of one key, but a key beside them is alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sandlot.model.access import OwnerId

SHARES: Final = 4
"""While another key is active, a key gets this part of the processor time; a smaller part if more than three keys have requests that wait."""
CREDIT_S: Final = 0.05
"""Processor time that a key may use at once after a pause."""
ACTIVE_S: Final = 1.0
"""Time for which a key is active after a request."""
BODY_BYTES_PER_S: Final = 100_000_000
"""Bytes of JSON that one second of processor time receives, parses and validates, if their text is not ASCII."""
SENT_BYTES_PER_S: Final = 300_000_000
"""Bytes of output that one second of processor time receives from sandboxes and sends to clients (measured: 310 MB)."""
SMALL_BYTES: Final = 16 * 1024
"""Size as which a smaller part of a response counts."""
PAUSE_MIN_S: Final = 0.005
"""Length of the shortest pause of a response. The event loop has timers of whole milliseconds."""
COST_MIN_S: Final = 0.0001
COST_MAX_S: Final = 0.003
"""Upper bound of the measured cost. Between two requests, the service also works for bodies, streams and itself."""
COST_STEP: Final = 1.05
"""Factor by which the cost of a request follows the latest measurement."""


@dataclass(slots=True)
class _Key:
    """Requests of one key."""

    active_s: float
    """Time of the latest request."""
    paid_s: float
    """Time at which the key has paid for its requests: each one delays the next by its cost and by the parts of others."""
    waiting: deque[tuple[asyncio.Future[None], float]] = field(default_factory=deque)
    """Requests that wait, each with the cost of its body."""

    @property
    def due_s(self) -> float:
        """Time from which the next request may begin."""
        return self.paid_s - CREDIT_S * SHARES


class RequestTurns:
    """Requests that wait to begin.

    Args:
        used_s: Processor time that the service has used.
    """

    __slots__ = ("_cost_s", "_counted_s", "_is_taken", "_keys", "_timer", "_used_s")

    def __init__(self, used_s: Callable[[], float] = time.process_time) -> None:
        self._used_s = used_s
        self._counted_s = used_s()
        self._cost_s = COST_MIN_S
        """Median of the processor time between two requests that begin."""
        self._is_taken = False
        """True until the next turn of the loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._keys: dict[OwnerId | None, _Key] = {}
        """Owners in the order of their turns."""

    async def take(self, owner: OwnerId | None, body_bytes: int = 0) -> None:
        """Wait until it is the turn of a request.

        Args:
            owner: Owner of the key of the request. None: the request has no key.
            body_bytes: Size of a body that will be parsed.
        """
        now_s = asyncio.get_running_loop().time()
        key = self._keys.get(owner)
        if key is None:
            self._forget_inactive(now_s)
            key = self._keys[owner] = _Key(now_s, now_s)
        key.active_s = now_s
        body_s = body_bytes / BODY_BYTES_PER_S
        if not self._is_taken and not key.waiting and self._is_due(key, now_s):
            self._is_taken = True
            asyncio.get_running_loop().call_soon(self._next)
            self._begin(owner, key, now_s, body_s)
            return
        begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key.waiting.append((begins, body_s))
        if not self._is_taken:
            self._wake(now_s)
        await begins

    def charge(self, owner: OwnerId | None, body_bytes: int) -> None:
        """Charge a body whose size was not known when its request began."""
        key, now_s = self._keys.get(owner), asyncio.get_running_loop().time()
        if key is not None and not self._is_alone(key, now_s):
            key.paid_s = max(key.paid_s, now_s) + body_bytes / BODY_BYTES_PER_S * SHARES

    async def pause(self, owner: OwnerId | None, sent_bytes: int) -> None:
        """Charge a part of a response, or of a WebSocket, that is sent, and wait until its key may send more."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        key = self._keys.get(owner)
        if key is None:
            key = self._keys[owner] = _Key(now_s - ACTIVE_S, now_s)
        if self._is_alone(key, now_s):
            return
        key.paid_s = max(key.paid_s, now_s) + max(sent_bytes, SMALL_BYTES) / SENT_BYTES_PER_S * SHARES
        while not self._is_due(key, now_s):
            await asyncio.sleep(min(max(key.due_s - now_s, PAUSE_MIN_S), ACTIVE_S))
            now_s = loop.time()

    def _next(self) -> None:
        """Begin one request, if one is due."""
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._is_taken = self._begin_one(now_s)
        if self._is_taken:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._wake(now_s)

    def _begin_one(self, now_s: float) -> bool:
        for owner, key in list(self._waiting()):
            while key.waiting and key.waiting[0][0].done():
                key.waiting.popleft()  # its client has left
            if key.waiting and self._is_due(key, now_s):
                begins, body_s = key.waiting.popleft()
                self._begin(owner, key, now_s, body_s)
                begins.set_result(None)
                return True
        return False

    def _wake(self, now_s: float) -> None:
        """Begin the next request when it is due."""
        due_s = min((key.due_s for _, key in self._waiting()), default=None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self._next)

    def _is_due(self, key: _Key, now_s: float) -> bool:
        return key.due_s <= now_s or self._is_alone(key, now_s)

    def _is_alone(self, key: _Key, now_s: float) -> bool:
        return all(owner is None or other is key or (not other.waiting and now_s - other.active_s >= ACTIVE_S) for owner, other in self._keys.items())

    def _begin(self, owner: OwnerId | None, key: _Key, now_s: float, body_s: float) -> None:
        """Charge a request that begins to its key. The next turn of the key comes after those of all others."""
        used_s = self._used_s()
        step = COST_STEP if used_s - self._counted_s > self._cost_s else 1 / COST_STEP
        self._cost_s = min(max(self._cost_s * step, COST_MIN_S), COST_MAX_S)
        self._counted_s = used_s
        key.active_s = now_s
        if self._is_alone(key, now_s):
            key.paid_s = now_s
        else:
            key.paid_s = max(key.paid_s, now_s) + (self._cost_s + body_s) * max(SHARES, 1 + sum(1 for _ in self._waiting()))
        del self._keys[owner]
        self._keys[owner] = key

    def _waiting(self) -> Iterator[tuple[OwnerId | None, _Key]]:
        return ((owner, key) for owner, key in self._keys.items() if key.waiting)

    def _forget_inactive(self, now_s: float) -> None:
        for owner, key in list(self._keys.items()):
            if not key.waiting and now_s - max(key.active_s, key.paid_s) >= ACTIVE_S:
                del self._keys[owner]
