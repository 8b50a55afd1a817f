"""What core asks of the world besides a driver: the time, templates, a link to a guest, and package indexes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from sandlot.link.client import Link
from sandlot.link.services import GuestStream, Service
from sandlot.model.ports import ByteStream
from sandlot.model.specs import RootFs


class Clock(Protocol):
    """The time; injected, so that a test of a deadline takes no time."""

    def monotonic_s(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    def now(self) -> datetime:
        """The date, in UTC."""
        ...

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Return once :meth:`monotonic_s` has reached that moment."""
        ...


class SystemClock:
    """The time of this machine."""

    def monotonic_s(self) -> float:
        """Seconds since boot, without the time spent suspended (CLOCK_MONOTONIC)."""
        return time.monotonic()

    def now(self) -> datetime:
        """The date, in UTC."""
        return datetime.now(UTC)

    async def sleep_until(self, moment_monotonic_s: float) -> None:
        """Return once :meth:`monotonic_s` has reached that moment."""
        await asyncio.sleep(moment_monotonic_s - time.monotonic())


@dataclass(frozen=True, slots=True)
class Template:
    """Something that a sandbox can be started from.

    Args:
        name: What a request calls it.
        description: One line for people.
        digest: SHA-256 in hexadecimal of its root file system; None until it is built.
        building: What its build is at, for a person; None where nobody builds it.
    """

    name: str
    description: str
    digest: str | None
    building: str | None = None


@dataclass(frozen=True, slots=True)
class ResolvedTemplate:
    """What a template gives a sandbox.

    Args:
        root: Its root file system.
        env: What every process starts with; the sandbox's own environment goes over it.
    """

    root: RootFs
    env: Mapping[str, str]


class TemplateStore(Protocol):
    """Builds and keeps templates and their root file systems. All methods but ``names`` block, so core calls them in a thread."""

    def names(self) -> Collection[str]:
        """All that a request may name."""
        ...

    def all(self) -> Sequence[Template]:
        """What is known of all of them."""
        ...

    def base(self, name: str) -> ResolvedTemplate:
        """What a template gives; builds it first where nobody did, which takes minutes.

        Raises:
            NotFoundError: ``template_not_found``.
            HostError: It cannot be built here; the hint gives the fix.
        """
        ...

    def at(self, name: str, digest: str) -> ResolvedTemplate | None:
        """What a template gave whose root file system had that digest; None where that is not there any more. Builds nothing."""
        ...


class VolumeDisks(Protocol):
    """File systems of volumes on the host. Every method blocks, and may raise ``OSError``."""

    def takes(self, size_bytes: int) -> int:
        """The most that one takes on the disk. Pure."""
        ...

    def make(self, volume: str, size_bytes: int) -> None:
        """Make one, empty."""
        ...

    def mount(self, volume: str) -> Path:
        """Where it is mounted, from now on where it was not."""
        ...

    def unmount(self, volume: str) -> None:
        """Take it away from the host. Idempotent."""
        ...

    def used_bytes(self, volume: str) -> int | None:
        """What is in it; None while it is not mounted."""
        ...

    def remove(self, volume: str) -> None:
        """Remove it with all that is in it. Idempotent."""
        ...

    def ids(self) -> frozenset[str]:
        """All that there are, half made ones included."""
        ...


class GuestLinkFactory(Protocol):
    """Makes a link out of a byte stream to a guest: ``Link.greet`` outside tests."""

    def __call__(self, stream: ByteStream, *, services: Mapping[str, Service]) -> Awaitable[Link]:
        """A link over which the guest may ask for some services, by name."""
        ...


class PackageIndex(Protocol):
    """Package indexes, as sandboxes may read them."""

    async def serve(self, stream: GuestStream, *, sandbox: str, allowed: Callable[[], bool]) -> None:
        """Answer one connection from inside until it ends.

        Args:
            stream: Its bytes, both ways: HTTP/1.1 requests, one after another. Hostile.
            sandbox: Whose it is: what one sandbox asks at once is bounded.
            allowed: Whether the sandbox may have anything at this moment; asked for each request.
        """
        ...
