"""Streams of values between core and its callers, and pages of lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

T = TypeVar("T")
OutT_co = TypeVar("OutT_co", covariant=True)
InT_contra = TypeVar("InT_contra", contravariant=True)


class Stream(Protocol[OutT_co]):
    """Values that arrive over time, for one consumer.

    The call that returns a stream has begun the operation, so an error of the start is raised there. Later errors are raised by the iteration.
    """

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> OutT_co: ...

    async def aclose(self) -> None:
        """End the stream. Idempotent. A waiting ``__anext__`` raises ``StopAsyncIteration``."""
        ...


class Duplex(Stream[OutT_co], Protocol[InT_contra, OutT_co]):
    """A stream that also takes values."""

    async def send(self, data: InT_contra) -> None:
        """Send a value. Waits until there is room for it."""
        ...

    async def end(self) -> None:
        """Say that no further value follows. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list.

    Args:
        items: Items of the page.
        more: True if further items follow.
    """

    items: Sequence[T]
    more: bool
