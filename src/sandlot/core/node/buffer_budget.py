"""A bound on the memory that requests, collected output and answers hold in the service, all of them together.

Why: each of them is bounded by itself, but a thousand clients may each have one. What is counted is what can be large and
lives longer than a moment; what passes through in pieces is bounded by the number of connections.

Laws:
- What cannot be had is not waited for: whoever waits holds something that others wait for.
- What is collected from a sandbox and kept for it (output, results, input that it does not read) is at most its part, whoever asks:
  one that floods leaves room for the others. Bodies and answers are whichever client's sent or asked, and count against the whole.
- What was taken is given back by whoever took it, also where that fails.
"""

from __future__ import annotations

from sandlot.model.errors import ErrorCode, UnavailableError

RETRY_AFTER_S = 1
PART = 4
"""One part in so many is the most that one sandbox gets."""


class BufferBudget:
    """So many bytes.

    Args:
        most_bytes: The bound.
        whole: What this is a part of; what is taken here is taken there as well.
    """

    __slots__ = ("_most_bytes", "_taken_bytes", "_whole")

    def __init__(self, most_bytes: int, whole: BufferBudget | None = None) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0
        self._whole = whole

    @property
    def taken_bytes(self) -> int:
        """What is taken now."""
        return self._taken_bytes

    def part(self) -> BufferBudget:
        """A sandbox's part of it."""
        return BufferBudget(self._most_bytes // PART, self)

    def has(self, size: int) -> bool:
        """Whether so much could be taken."""
        return self._taken_bytes + size <= self._most_bytes and (self._whole is None or self._whole.has(size))

    def try_take(self, size: int) -> bool:
        """Take so many bytes, or nothing (False)."""
        if not self.has(size):
            return False
        self.take_anyway(size)
        return True

    def take(self, size: int) -> None:
        """Take so many bytes.

        Raises:
            UnavailableError: ``busy``: others have them.
        """
        if not self.try_take(size):
            raise UnavailableError(
                "The service holds as much data for its clients as it may.",
                code=ErrorCode.BUSY,
                hint="Try again in a moment. Large data goes into files, and large output is followed as events: both pass through.",
                fields={"retry_after_s": RETRY_AFTER_S},
            )

    def take_anyway(self, size: int) -> None:
        """Take what is there already, such as an answer that was made: whoever comes next finds less."""
        self._taken_bytes += size
        if self._whole is not None:
            self._whole.take_anyway(size)

    def give(self, size: int) -> None:
        """Give back."""
        self._taken_bytes -= size
        if self._whole is not None:
            self._whole.give(size)
