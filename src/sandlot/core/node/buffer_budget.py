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
"""Divisor of the budget: one sandbox gets at most a quarter."""


class BufferBudget:
    """Number of bytes that can be taken and given back.

    Args:
        most_bytes: Size of the budget.
        whole: Budget that this one is a share of. Bytes that are taken from the share are taken from the whole as well.
    """

    __slots__ = ("_most_bytes", "_taken_bytes", "_whole")

    def __init__(self, most_bytes: int, whole: BufferBudget | None = None) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._whole = whole

    @property
    def taken_bytes(self) -> int:
        """Bytes that are taken now."""
        return self._taken_bytes

    def part(self) -> BufferBudget:
        """Return the share of one sandbox."""
        return BufferBudget(self._most_bytes // PART, self)

    def has(self, size: int) -> bool:
        """Return whether so many bytes can be taken."""
        return self._taken_bytes + size <= self._most_bytes and (self._whole is None or self._whole.has(size))

    def try_take(self, size: int) -> bool:
        """Take bytes and return True, or take nothing and return False."""
        if not self.has(size):
            return False
        self.take_anyway(size)
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
        self._taken_bytes += size
        if self._whole is not None:
            self._whole.take_anyway(size)

    def give(self, size: int) -> None:
        """Give bytes back."""
        self._taken_bytes -= size
        if self._whole is not None:
            self._whole.give(size)
