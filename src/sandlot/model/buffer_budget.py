"""Limit of the service's memory for client data: request bodies, collected output and responses together.

Each request body, output and response has its own limit, but a thousand clients may reach this limit at the same time. The budget limits the total
size. The budget counts data that can be large and is kept for longer than a moment. Streamed data is not counted, because the
number of connections limits its amount.

Invariants:
- A request for memory that is not available fails at once. A waiting request would hold memory for which other requests wait.
- An owner holds at most as many bytes as are left for others: half of the budget alone, a third of it beside another owner that takes all it can get.
- Data that is kept for one sandbox (output, results, input that the sandbox does not read) is limited to a quarter of the budget.
- Responses of an owner, which are counted even beyond the limit, take at most half of the budget away from others.
- The code that takes memory gives it back, also after a failure.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

from sandlot.model.access import OwnerId
from sandlot.model.errors import ErrorCode, UnavailableError

RETRY_AFTER_S = 1
PART = 4
"""The part of one sandbox is the budget divided by this number."""


class BufferBudget:
    """Limited number of bytes, which callers take and give back.

    Args:
        whole: Budget of which this budget is a part. Bytes taken from the part are also taken from ``whole``. None: this budget is not a part.
        leaves_room: True for a part that may hold at most as many bytes as are left in ``whole``.
    """

    __slots__ = ("__weakref__", "_leaves_room", "_max_bytes", "_whole", "taken_bytes")

    def __init__(self, max_bytes: int, whole: BufferBudget | None = None, *, leaves_room: bool = False) -> None:
        self._max_bytes = max_bytes
        self._whole = whole
        self._leaves_room = leaves_room
        self.taken_bytes = 0

    def part(self) -> BufferBudget:
        """Return a part of this budget, at most a quarter of it."""
        return BufferBudget(self._max_bytes // PART, self)

    @property
    def room_bytes(self) -> int:
        """Number of bytes that can be taken now. Negative after :meth:`take_anyway`."""
        room = self._max_bytes - self.taken_bytes
        if self._whole is None:
            return room
        if self._leaves_room:
            return min(room, (self._whole.room_bytes - self.taken_bytes) // 2)
        return min(room, self._whole.room_bytes)

    def try_take(self, size: int) -> bool:
        """Take bytes and return True. If too few bytes are left, take nothing and return False.

        Args:
            size: Number of bytes. A negative number gives bytes back. 0 and negative numbers never fail.
        """
        if size > 0 and size > self.room_bytes:
            return False
        self.take_anyway(size)
        return True

    def take(self, size: int) -> None:
        """Take bytes from the budget.

        Raises:
            UnavailableError: Fewer than ``size`` bytes are left (``busy``).
        """
        if not self.try_take(size):
            raise UnavailableError(
                "This key's share of the service's memory for client data is used up.",
                code=ErrorCode.BUSY,
                hint="Retry when other requests of this key have ended. Pass large data as files, and read large output as a stream of events: "
                "neither uses this memory. An operator can raise SANDLOT_BUFFER_BYTES.",
                fields={"retry_after_s": RETRY_AFTER_S},
            )

    def take_anyway(self, size: int) -> None:
        """Take bytes even beyond the limit, for data that exists already, such as a finished response. Later requests then find fewer bytes."""
        before = self._taken_of_whole()
        self.taken_bytes += size
        if self._whole is not None:
            self._whole.take_anyway(self._taken_of_whole() - before)

    def give(self, size: int) -> None:
        """Give bytes back to the budget."""
        self.take_anyway(-size)

    def _taken_of_whole(self) -> int:
        return min(self.taken_bytes, self._max_bytes // 2) if self._leaves_room else self.taken_bytes


class BufferShares:
    """The memory of the service for client data, with a share for each owner."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._whole = BufferBudget(max_bytes)
        self._shares: WeakValueDictionary[OwnerId | None, BufferBudget] = WeakValueDictionary()

    @property
    def taken_bytes(self) -> int:
        """Number of bytes that all owners hold."""
        return self._whole.taken_bytes

    def of(self, owner: OwnerId | None) -> BufferBudget:
        """Return the share of an owner. Sandboxes and requests of the owner keep the share alive.

        Args:
            owner: The owner. None: all callers without a key.
        """
        share = self._shares.get(owner)
        if share is None:
            share = self._shares[owner] = BufferBudget(self._max_bytes, self._whole, leaves_room=True)
        return share
