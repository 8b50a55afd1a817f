"""Limit of the service's memory for client data: request bodies, collected output and responses together.

Each of these is limited by itself, but a thousand clients may each have one. The budget counts data that can be large and is kept for longer
than a moment. Streamed data is not counted, because the number of connections limits it.

Invariants:
- Memory that is not available is refused instead of waited for: a waiting request would hold memory that other requests wait for.
- Data that is kept for one sandbox (output, results, input that the sandbox does not read) is limited to the sandbox's share, so a sandbox
  that floods leaves memory for the others. Request bodies and responses count against the whole budget.
- The code that takes memory gives it back, also after a failure.
"""

from __future__ import annotations

from sandlot.model.errors import ErrorCode, UnavailableError

RETRY_AFTER_S = 1
PART = 4
"""Divisor of a budget: one sandbox or owner gets at most a quarter."""


class BufferBudget:
    """Number of bytes that can be taken and given back.

    Args:
        max_bytes: Size of the budget.
        whole: Budget that this one is a share of. Bytes that are taken from the share are taken from the whole as well.

    Attributes:
        taken_bytes: Bytes that are taken now.
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
        """Take bytes and return True, or take nothing and return False.

        Args:
            size: Number of bytes. 0 or a negative number, which gives bytes back, is always possible.
        """
        is_too_much = size > 0 and self.taken_bytes + size > self._max_bytes
        if is_too_much or (self._whole is not None and not self._whole.try_take(size)):
            return False
        self.taken_bytes += size
        return True

    def take(self, size: int) -> None:
        """Take bytes.

        Raises:
            UnavailableError: ``busy``: fewer bytes are left.
        """
        if not self.try_take(size):
            raise UnavailableError(
                "The service's memory for client data is used up.",
                code=ErrorCode.BUSY,
                hint="Retry in a moment. Pass large data as files, and follow large output as events: neither uses this memory.",
                fields={"retry_after_s": RETRY_AFTER_S},
            )

    def take_anyway(self, size: int) -> None:
        """Take bytes even beyond the limit, for data that exists already, such as a finished response. Later requests get less."""
        self.taken_bytes += size
        if self._whole is not None:
            self._whole.take_anyway(size)

    def give(self, size: int) -> None:
        """Give bytes back."""
        self.taken_bytes -= size
        if self._whole is not None:
            self._whole.give(size)
