"""Template snapshots: one sandbox of a look is booted, made warm and written down once; others are restored from that.

====== ================================================================================================================================
boot   a sandbox that is nobody's; its spare kernel is forked, what kernels import is imported; it falls asleep
write  the driver writes it down, and it has ended
try    one is restored from that, woken, and runs a command and a cell
shelf  what was tried appears under its key (:mod:`sandlot.core.pools.template_snapshot_cache`), and what it replaces goes
====== ================================================================================================================================

Laws:
- A snapshot whose key is not what it would be made of now is not used. It is looked at again every :data:`CHECK_S`, and whenever it failed.
- One is made at a time, off every request's way, and only while there is room for it on the node: it is promised like a sandbox. One of the node's
  gets the room of what waits for owners; one that only owners want may take :data:`FLEETING_S`, so that it does not keep the node's waiting.
- What fails is tried again, ever more rarely, and can be seen: its words are told with the pools.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools import models, policy
from sandlot.core.pools.models import TemplateSnapshotSpec
from sandlot.core.pools.template_snapshot_cache import IMAGE, TemplateSnapshot, TemplateSnapshotCache, in_thread
from sandlot.core.pools.warm import WarmSandboxFactory, verify_restored
from sandlot.core.ports import Clock, GuestLinkFactory
from sandlot.core.records.metrics import Metrics
from sandlot.host.locked_folder import LockedFolder
from sandlot.model.errors import SandlotError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, HostReading, Resources

CHECK_S: Final = 60.0
MAKE_S: Final = 600.0
"""For making one: the sum of its steps' patience would be longer than anybody believes that it still comes."""

FLEETING_S: Final = 120.0
"""For one that only owners' pools have, whatever it waits for."""

_OTHERS_PAUSE_S: Final = 0.5

_log = structlog.get_logger("sandlot.core")


@dataclass(slots=True)
class _State:
    """How it stands with the snapshot of one look."""

    held: TemplateSnapshot | None = None
    checked_s: float = float("-inf")
    failures: int = 0
    not_before_s: float = float("-inf")
    error: str = ""
    unusable: str = ""
    """The key of one that could not be restored from."""
    fleeting: bool = False
    """Whether only pools of owners have it."""


class TemplateSnapshotManager:
    """The template snapshots that this service uses.

    Args:
        shelf: Where they lie.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Where the node's promises are.
        greet: Makes a link to a guest.
        clock: The time.
        new_id: Makes ids that carry this node.
        metrics: What is counted.
        version: Sandlot's: what another one made may have been made otherwise.
    """

    def __init__(
        self,
        *,
        shelf: TemplateSnapshotCache,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        greet: GuestLinkFactory,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        version: str,
    ) -> None:
        self._shelf = shelf
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._greet = greet
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._version = version
        self._states: dict[TemplateSnapshotSpec, _State] = {}
        self.displace: Callable[[Resources, HostReading], object] | None = None
        """Sees to it that there will be room for something of the node's, as far as that is owners'."""
        self.holder = ""
        """Who has the promise of the one that is being made; empty where none is."""

    def at_hand(self, look: TemplateSnapshotSpec) -> TemplateSnapshot | None:
        """The snapshot of a look, if there is one that may be used; looks at nothing."""
        state = self._states.get(look)
        return None if state is None else state.held

    def error(self, look: TemplateSnapshotSpec) -> str:
        """Why there is none, where making one failed; empty otherwise."""
        state = self._states.get(look)
        return "" if state is None else state.error

    def failed(self, held: TemplateSnapshot, why: str) -> None:
        """One could not be restored from: it is used no more, and made anew."""
        for look, state in self._states.items():
            if state.held is held:
                _log.warning("template.unusable", template=look.template, isolation=look.isolation, error=why)
                state.unusable = held.key
                self._drop(state)
                self._fail(state, why)
                self._metrics.template_snapshot("unusable")

    async def keep(self, lasting: Collection[TemplateSnapshotSpec], fleeting: Collection[TemplateSnapshotSpec]) -> None:
        """Use no others any more.

        Args:
            lasting: What the node's pools have. One that is used no more stays on the disk for who may need it again, until a sweep.
            fleeting: What owners' pools alone have. It leaves the disk with them: else a key could fill it with one pool after the other.
        """
        for look in (*lasting, *fleeting):
            self._states.setdefault(look, _State()).fleeting = look not in lasting
        for look in [each for each in self._states if each not in lasting and each not in fleeting]:
            state = self._states.pop(look)
            held = state.held
            self._drop(state)
            if held is not None and state.fleeting:
                await asyncio.to_thread(self._shelf.remove, held.key)

    async def sweep(self) -> None:
        """Remove what killed services left half made, and what nobody has used for long."""
        swept = await asyncio.to_thread(self._shelf.sweep)
        if swept:
            _log.info("template.swept", count=swept)

    async def able(self, look: TemplateSnapshotSpec) -> bool:
        """Whether a driver can have snapshots here at all."""
        return (await self._drivers.capabilities_for(look.isolation, DriverCapability.SNAPSHOT)).can(DriverCapability.SNAPSHOT)

    async def ensure(self, look: TemplateSnapshotSpec) -> TemplateSnapshot | None:
        """The snapshot of a look as it would be made now; made where it is not there. None where it cannot be, or not yet.

        One caller at a time.
        """
        state = self._states.setdefault(look, _State())
        now_s = self._clock.monotonic_s()
        if state.held is not None and now_s - state.checked_s < CHECK_S:
            return state.held
        if now_s < state.not_before_s or not await self.able(look):
            return None
        try:
            async with asyncio.timeout(FLEETING_S if state.fleeting else None):
                await self._renew(look, state)
        except UnavailableError as error:  # no room for it now: that is no failure
            state.not_before_s, state.error = self._clock.monotonic_s() + policy.back_off_s(2), error.message
        except (SandlotError, OSError, TimeoutError) as error:
            _log.warning("template.not_written", template=look.template, isolation=look.isolation, error=str(error) or type(error).__name__)
            self._fail(state, failure(error))
            self._metrics.template_snapshot("failed")
        return state.held

    def close(self) -> None:
        """Use none of them any more."""
        for state in self._states.values():
            self._drop(state)

    async def _renew(self, look: TemplateSnapshotSpec, state: _State) -> None:
        driver = self._drivers[look.isolation]
        base = await self._templates.resolve(look.template)
        fingerprint = await asyncio.to_thread(driver.fingerprint)
        parts = models.made_of(look, base, fingerprint, self._version)
        key = models.key(parts)
        state.checked_s = self._clock.monotonic_s()
        if state.held is not None and state.held.key == key:
            return
        self._drop(state)
        if state.unusable == key:
            await asyncio.to_thread(self._shelf.remove, key)
            state.unusable = ""
        making = WarmSandboxFactory(driver, self._greet, look.template, base, look.limits)
        held = await self._take(key, making)
        while held is None:
            lock = await in_thread(self._shelf.lock, key, os.close)
            try:
                held = await self._take(key, making)  # whoever had the lock may have made it
                if held is None and lock is not None:
                    async with asyncio.timeout(MAKE_S):
                        await self._make(look, making, key, parts, fleeting=state.fleeting)
            finally:
                if lock is not None:
                    os.close(lock)
            if lock is None:
                await asyncio.sleep(_OTHERS_PAUSE_S)
        state.held, state.failures, state.error = held, 0, ""

    async def _take(self, key: str, making: WarmSandboxFactory) -> TemplateSnapshot | None:
        """One that lies there, if this driver can use it; one that it cannot is removed."""
        held = await in_thread(self._shelf.take, key, TemplateSnapshot.release)
        if held is None:
            return None
        verdict = await asyncio.to_thread(making.driver.restorable, held.image)
        if verdict.ok:
            return held
        held.release()
        _log.warning("template.unusable", key=key, error=verdict.reason)
        await asyncio.to_thread(self._shelf.remove, key)
        return None

    async def _make(self, look: TemplateSnapshotSpec, making: WarmSandboxFactory, key: str, parts: Any, *, fleeting: bool) -> None:  # noqa: ANN401 - what the manifest tells
        """Make a snapshot, try it and publish it. The caller has locked the key."""
        takes = making.driver.max_resources(look.limits)
        holder = f"template-{key[:16]}"
        reading = await self._reservations.read_host()
        if not fleeting and self.displace is not None:
            self.displace(takes, reading)
        self._reservations.reserve(holder, takes, reading)
        self.holder = holder
        watch = _Stopwatch()
        try:
            folder = await in_thread(self._shelf.begin, key, LockedFolder.close)
            try:
                size = await self._write(making, folder.content / IMAGE, watch)
                manifest = {
                    "look": look.words(),
                    "made_of": dict(parts),
                    "made_at": self._clock.now().isoformat(timespec="seconds"),
                    "size_bytes": size,
                    **watch.laps,
                }
                await asyncio.to_thread(self._shelf.publish, key, folder, manifest)
            finally:
                await asyncio.shield(asyncio.to_thread(folder.close))
        finally:
            self._reservations.release(holder)
            self.holder = ""
        self._metrics.template_snapshot("made")
        _log.info("template.written", template=look.template, isolation=look.isolation, size_bytes=size, **watch.laps)
        await asyncio.to_thread(functools.partial(self._shelf.replaced, key, look.words()))

    async def _write(self, making: WarmSandboxFactory, image: Path, watch: _Stopwatch) -> int:
        """Write the snapshot of a new sandbox, restore another sandbox from it, and return its size in bytes."""
        made = await making.boot(self._new_id())
        try:
            watch.lap("boot_s")
            size = await made.instance.snapshot(image, keep_running=False)
            watch.lap("write_s")
        finally:
            await asyncio.shield(made.destroy())
        again = await making.restore(self._new_id(), image)
        try:
            await verify_restored(making, again)
            watch.lap("try_s")
        finally:
            await asyncio.shield(again.destroy())
        return size

    def _fail(self, state: _State, why: str) -> None:
        state.failures += 1
        state.error = why
        state.not_before_s = self._clock.monotonic_s() + policy.back_off_s(state.failures)

    @staticmethod
    def _drop(state: _State) -> None:
        if state.held is not None:
            state.held.release()
            state.held = None


class _Stopwatch:
    """How long the parts of something took."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now_s = time.monotonic()
        self.laps[name] = round(now_s - self._since_s, 3)
        self._since_s = now_s


def made_at(held: TemplateSnapshot) -> datetime | None:
    """When a snapshot was made, as its manifest says."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return datetime.fromisoformat(held.made["made_at"])
    return None


def failure(error: Exception) -> str:
    """What is told of something that could not be made, to whoever has the pool: no path of the host, which the log has."""
    if isinstance(error, TimeoutError) and not str(error):
        return "It took too long."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
