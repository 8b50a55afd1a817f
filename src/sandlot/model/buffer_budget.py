"""Limit of the service's memory for client data: request bodies, collected output and responses together.

Each request body, output and response has its own limit, but a thousand clients may reach this limit at the same time. The budget limits the total
size. The budget counts data that can be large and is kept for longer than a moment. Streamed data is not counted, because the
number of connections limits its amount.

Invariants:
- A request for memory that is not available fails at once. A waiting request would hold memory for which other requests wait.
- Data that is kept for one sandbox (output, results, input that the sandbox does not read) is limited to the sandbox's share, so one
  sandbox cannot use up the whole budget. Request bodies and responses count against the whole budget.
- The code that takes memory gives it back, also after a failure.
"""

from __future__ import annotations

from sandlot.model.errors import ErrorCode, UnavailableError

RETRY_AFTER_S = 1
PART = 4
"""The share of one sandbox or owner is the budget divided by this number."""


class BufferBudget:
    """Limited number of bytes, which callers take and give back.

    Args:
        whole: Budget of which this budget is a share. Bytes taken from the share are also taken from ``whole``. None: this budget is not a share.
    """

    __slots__ = ("_max_bytes", "_whole", "taken_bytes")

    def __init__(self, max_bytes: int, whole: BufferBudget | None = None) -> None:
        self._max_bytes = max_bytes
        self._whole = whole
        self.taken_bytes = 0

    def part(self) -> BufferBudget:
        """Return the share of one sandbox or owner, a quarter of this budget."""
        return BufferBudget(self._max_bytes // PART, self)

    def try_take(self, size: int) -> bool:
        """Take bytes and return True. If too few bytes are left, take nothing and return False.

        Args:
            size: Number of bytes. A negative number gives bytes back. 0 and negative numbers never fail.
        """
        is_too_much = size > 0 and self.taken_bytes + size > self._max_bytes
        if is_too_much or (self._whole is not None and not self._whole.try_take(size)):
            return False
        self.taken_bytes += size
        return True

    def take(self, size: int) -> None:
        """Take bytes from the budget.

        Raises:
            UnavailableError: Fewer than ``size`` bytes are left (``busy``).
        """
        if not self.try_take(size):
            raise UnavailableError(
                "The service's memory for client data is used up.",
                code=ErrorCode.BUSY,
                hint="Retry in a moment. Pass large data as files, and read large output as a stream of events: neither uses this memory.",
                fields={"retry_after_s": RETRY_AFTER_S},
            )

    def take_anyway(self, size: int) -> None:
        """Take bytes even beyond the limit, for data that exists already, such as a finished response. Later requests then find fewer bytes."""
        self.taken_bytes += size
        if self._whole is not None:
            self._whole.take_anyway(size)

    def give(self, size: int) -> None:
        """Give bytes back to the budget."""
        self.taken_bytes -= size
        if self._whole is not None:
            self._whole.give(size)
