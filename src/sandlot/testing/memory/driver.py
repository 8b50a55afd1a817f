"""A driver whose sandboxes are objects in memory: it starts one in well under a millisecond and fails on demand.

The guest is scripted (:mod:`sandlot.testing.memory.guest`); nothing that runs in it is isolated. Snapshots are kept by the driver under a
token that the snapshot's folder holds, so that folders can be copied and removed like those of a real driver. The driver outlives the
services of a test: a second service on the same driver adopts what the first one left.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandlot.model.errors import ConflictError, ErrorCode, LimitError, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.ports import Attachment, ByteStream, Capabilities, Change, DriverCapability, Exit, ExitReason, ProbeResult, Resources, Usage
from sandlot.model.specs import Limits, SandboxSpec, Shape
from sandlot.testing.memory.guest import MemoryGuest, Scripts
from sandlot.testing.memory.timers import GuestClock

MANIFEST = "memory.json"
_SAVED = "it was written to a snapshot"
_DESTROYED = "it was destroyed"


@dataclass
class Faults:
    """What goes wrong in a driver's steps.

    The steps are ``prepare``, ``attach``, ``warm``, ``boot``, ``restore``, ``connect``, ``configure``, ``pause``, ``resume``, ``snapshot``,
    ``usage``, ``destroy``, ``clean`` (after the processes have ended), ``adopt`` and ``sweep``.

    Attributes:
        raises: Step -> exceptions that its next calls raise.
        reason: Why the driver cannot do anything; empty if it can.
    """

    raises: dict[str, list[Exception]] = field(default_factory=dict)
    reason: str = ""
    _holds: dict[str, asyncio.Event] = field(default_factory=dict)
    _reached: dict[str, asyncio.Event] = field(default_factory=dict)

    def hold(self, step: str) -> asyncio.Event:
        """Let all calls of a step wait until the returned event is set."""
        self._holds[step], self._reached[step] = asyncio.Event(), asyncio.Event()
        return self._holds[step]

    def release(self, step: str) -> None:
        """Hold a step no longer; calls that wait go on."""
        self._holds.pop(step).set()

    async def reach(self, step: str) -> None:
        """Wait until a held step is called."""
        await self._reached[step].wait()

    async def at(self, step: str) -> None:
        """Wait and raise as the test demanded."""
        await asyncio.sleep(0)
        if step in self._holds:
            self._reached[step].set()
            await self._holds[step].wait()
        if waiting := self.raises.get(step):
            raise waiting.pop(0)


class MemoryInstance:
    """One live sandbox.

    Attributes:
        guest: Its scripted guest.
        changes: Changes that were applied, oldest first.
        volumes: Slot -> attached volume.
    """

    hub = None

    def __init__(self, driver: MemoryDriver, ref: str, shape: Shape, guest: MemoryGuest, volumes: Iterable[Attachment]) -> None:
        self._driver = driver
        self._shape = shape
        self.ref = ref
        self.limits = shape.limits
        self.guest = guest
        self.changes: list[Change] = []
        self.volumes = {volume.slot: volume for volume in volumes}
        self.usage_now = Usage(cpu_s=0.5, memory_bytes=1, memory_peak_bytes=2, pids=3, disk_bytes=4)
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        guest.ended.add_done_callback(lambda ended: self._end(_exit_of(ended.result())))

    @property
    def is_paused(self) -> bool:
        """Whether it stands still."""
        return self.guest.is_frozen

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs."""
        return self._exit.done()

    def crash(self, reason: ExitReason = ExitReason.KILLED, detail: str = "status -9") -> None:
        """End it from outside, as the kernel's out-of-memory killer does."""
        self._end(Exit(reason, detail))

    async def connect(self) -> ByteStream:
        """Return a new byte stream to the guest."""
        await self._driver.faults.at("connect")
        self._check_live()
        if self.guest.stream is not None:
            raise ConflictError("The sandbox is connected already.", code=ErrorCode.CONFLICT)
        return self.guest.connect()

    async def configure(self, change: Change) -> None:
        """Change limits and volumes: all of it, or nothing."""
        await self._driver.faults.at("configure")
        self._check_live()
        for ability in change.needs(self.limits):
            self._driver.require(ability)
        if self.is_paused:
            raise ConflictError("The sandbox is paused.", code=ErrorCode.CONFLICT, hint="Resume it first.")
        self.changes.append(change)
        self.limits = change.over(self.limits)
        for volume in change.volumes:
            self.volumes[volume.slot] = volume
        for slot in change.without:
            self.volumes.pop(slot, None)

    async def pause(self) -> None:
        """Freeze it. Idempotent."""
        await self._driver.faults.at("pause")
        self._driver.require(DriverCapability.PAUSE)
        self._check_live()
        self.guest.freeze()

    async def resume(self) -> None:
        """Thaw it. Idempotent."""
        await self._driver.faults.at("resume")
        self._driver.require(DriverCapability.PAUSE)
        self._check_live()
        self.guest.thaw()

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True) -> int:
        """Keep a copy of the guest and write its token into a folder."""
        del durable
        self._driver.require(DriverCapability.SNAPSHOT)
        self._check_live()
        if await asyncio.to_thread(into.exists):
            raise ConflictError(f"There is something at {into}.", code=ErrorCode.CONFLICT)
        await self._driver.faults.at("snapshot")
        self._check_live()
        state = self.guest.save()
        size = self._driver.write_image(into, state, self._shape, self.limits)
        if not keep_running:
            self._end(Exit(ExitReason.KILLED, _SAVED))
        return size

    async def usage(self) -> Usage:
        """Return :attr:`usage_now`, which a test may set."""
        await self._driver.faults.at("usage")
        self._check_live()
        return self.usage_now

    async def wait(self) -> Exit:
        """Return how it ended, once it has."""
        return await asyncio.shield(self._exit)

    async def destroy(self) -> None:
        """End it and remove every trace. Idempotent."""
        await self._driver.faults.at("destroy")
        self._end(Exit(ExitReason.KILLED, _DESTROYED))
        await self._driver.faults.at("clean")
        self._driver.forget(self.ref)

    def _end(self, exit_: Exit) -> None:
        if not self._exit.done():
            self._exit.set_result(exit_)
        self.guest.end("killed")

    def _check_live(self) -> None:
        if self._exit.done():
            ended = self._exit.result()
            fields = {"reason": ended.reason.value, "detail": ended.detail}
            raise SandboxEndedError(f"The sandbox has ended ({ended.reason}).", code=ErrorCode.SANDBOX_ENDED, fields=fields)


class MemoryPreparedSandbox:
    """A prepared sandbox; nothing runs in it."""

    def __init__(self, driver: MemoryDriver, shape: Shape, ref: str) -> None:
        self._driver = driver
        self._shape = shape
        self.ref = ref
        self.is_warm = False
        self._volumes: list[Attachment] = []
        self._instance: MemoryInstance | None = None
        self._is_used = self._is_destroyed = False

    async def warm(self) -> None:
        """Note that it is warm. Idempotent."""
        self._driver.require(DriverCapability.SNAPSHOT)
        self._check()
        await self._driver.faults.at("warm")
        self._check_alive()
        self.is_warm = True

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Attach volumes before it starts."""
        await self._driver.faults.at("attach")
        self._driver.require(DriverCapability.VOLUMES)
        self._check_alive()
        self._volumes.extend(volumes)

    async def boot(self, spec: SandboxSpec) -> MemoryInstance:
        """Start a new guest."""
        del spec
        self._check()
        self._is_used = True
        try:
            await self._driver.faults.at("boot")
            self._check_alive()
        except BaseException:
            self._driver.forget(self.ref)
            raise
        return self._start(MemoryGuest(self._driver.scripts, self._driver.clock))

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> MemoryInstance:
        """Start a copy of the guest that a snapshot was taken of."""
        del spec
        self._driver.require(DriverCapability.SNAPSHOT)
        state, misfit = self._driver.read_image(snapshot, self._shape)
        if misfit:
            raise _unusable(misfit)
        self._check()
        self._is_used = True
        try:
            await self._driver.faults.at("restore")
            self._check_alive()
        except BaseException:
            self._driver.forget(self.ref)
            raise
        guest = MemoryGuest(self._driver.scripts, self._driver.clock)
        guest.load(state)
        return self._start(guest)

    async def destroy(self) -> None:
        """Give everything back, also after the start. Idempotent."""
        if self._instance is not None:
            await self._instance.destroy()
            return
        await self._driver.faults.at("destroy")
        self._is_destroyed = True
        self._driver.forget(self.ref)

    def _start(self, guest: MemoryGuest) -> MemoryInstance:
        self._instance = MemoryInstance(self._driver, self.ref, self._shape, guest, self._volumes)
        self._driver.add(self._instance)
        return self._instance

    def _check(self) -> None:
        self._check_alive()
        if self._is_used:
            raise ConflictError("This sandbox was started already.", code=ErrorCode.CONFLICT)

    def _check_alive(self) -> None:
        if self._is_destroyed:
            raise SandboxEndedError("The sandbox was destroyed.", code=ErrorCode.SANDBOX_ENDED, fields={"reason": "killed", "detail": _DESTROYED})


class MemoryDriver:
    """Sandboxes in memory.

    Args:
        name: Name that the driver is registered under.
        clock: Clock of the guests' timers; None is the event loop's.
        abilities: What the driver can do.

    Attributes:
        faults: What goes wrong on demand.
        scripts: What all guests can run.
        booted: All instances that were ever started, oldest first.
        kept_in_sweeps: The refs that each sweep kept.
        image_bytes: Reported size of a snapshot.
    """

    def __init__(
        self, name: str = "gvisor", clock: GuestClock | None = None, abilities: Collection[DriverCapability] = tuple(DriverCapability)
    ) -> None:
        self.name = name
        self.clock = clock
        self.abilities = frozenset(abilities)
        self.faults = Faults()
        self.scripts = Scripts()
        self.booted: list[MemoryInstance] = []
        self.prepared: list[MemoryPreparedSandbox] = []
        self.kept_in_sweeps: list[frozenset[str]] = []
        self.version = "memory-1"
        self._held: dict[str, MemoryPreparedSandbox | MemoryInstance] = {}
        self._in_use: set[str] = set()
        self._images: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)

    # -- observed and controlled by tests -----------------------------------------------------------------------------

    @property
    def instances(self) -> list[MemoryInstance]:
        """The sandboxes that are alive, oldest first."""
        return [instance for instance in self.booted if not instance.has_ended]

    def fail_next(self, step: str, *errors: Exception) -> None:
        """Let the next calls of a step fail."""
        self.faults.raises.setdefault(step, []).extend(errors)

    def hold(self, step: str) -> asyncio.Event:
        """Let all calls of a step wait until the returned event is set; ``faults.reach`` waits for the first."""
        return self.faults.hold(step)

    def leftovers(self) -> list[str]:
        """Return the refs of everything that was not destroyed."""
        return sorted(self._held)

    def restart(self) -> None:
        """Forget which sandboxes the service holds, as the driver of a service that was started again does."""
        self._in_use.clear()

    def guest(self, ref: str) -> MemoryGuest:
        """Return the guest of a live sandbox."""
        return next(instance.guest for instance in self.instances if instance.ref == ref)

    # -- the driver's contract ----------------------------------------------------------------------------------------

    def probe(self) -> Capabilities:
        """Return what the driver can do."""
        verdicts = {
            ability: ProbeResult(ok=not self.faults.reason, reason=self.faults.reason)
            if ability in self.abilities
            else ProbeResult(ok=False, reason="this in-memory driver was made without it")
            for ability in DriverCapability
        }
        return Capabilities(self.name, self.version, verdicts)

    def fingerprint(self) -> str:
        """Return what snapshots depend on."""
        return self.version

    def max_resources(self, limits: Limits) -> Resources:
        """Return the limits as they are: nothing is added for a runtime."""
        return Resources(memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, pids=limits.pids)

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Return whether a snapshot can be restored."""
        if DriverCapability.SNAPSHOT not in self.abilities:
            return ProbeResult(ok=False, reason=self.probe().why_not(DriverCapability.SNAPSHOT))
        _, misfit = self.read_image(snapshot, None)
        return ProbeResult(ok=not misfit, reason=misfit)

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> MemoryPreparedSandbox:
        """Make a prepared sandbox."""
        del snapshot
        await self.faults.at("prepare")
        prepared = MemoryPreparedSandbox(self, shape, f"memory-{next(self._numbers)}")
        self.prepared.append(prepared)
        self._held[prepared.ref] = prepared
        self._in_use.add(prepared.ref)
        return prepared

    async def adopt(self, ref: str) -> MemoryInstance:
        """Return a sandbox that an earlier service left."""
        await self.faults.at("adopt")
        for instance in self.instances:
            if instance.ref == ref:
                instance.guest.stream = None
                self._in_use.add(ref)
                return instance
        raise NotFoundError(f"There is no sandbox {ref}.", code=ErrorCode.SANDBOX_NOT_FOUND)

    async def sweep(self, keep: Collection[str]) -> int:
        """Destroy everything that is neither kept nor made or adopted by this service."""
        self.kept_in_sweeps.append(frozenset(keep))
        await self.faults.at("sweep")
        strays = [held for ref, held in self._held.items() if ref not in self._in_use and ref not in keep]
        for stray in strays:
            await stray.destroy()
        return len(strays)

    # -- used by its sandboxes ----------------------------------------------------------------------------------------

    def require(self, ability: DriverCapability) -> None:
        """Raise ``UnsupportedError`` for an ability that the driver does not have."""
        can = self.probe()
        if not can.can(ability):
            reason = can.why_not(ability)
            raise UnsupportedError(f"This driver cannot do that: {reason}.", code=ErrorCode.UNSUPPORTED, fields={"reason": reason})

    def add(self, instance: MemoryInstance) -> None:
        """Note a sandbox that was started."""
        self.booted.append(instance)
        self._held[instance.ref] = instance

    def forget(self, ref: str) -> None:
        """Note that nothing is left of a sandbox. Idempotent."""
        self._held.pop(ref, None)

    def write_image(self, into: Path, state: dict[str, Any], shape: Shape, limits: Limits) -> int:
        """Keep a guest's state and write the folder that stands for it. Return its size in bytes."""
        token = f"image-{next(self._numbers)}"
        new = into.with_name(f"{into.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        manifest = {"token": token, "driver": self.name, "version": self.version, "root": shape.root.digest, "limits": _shown(limits)}
        try:
            new.mkdir(parents=True)
            (new / MANIFEST).write_text(json.dumps(manifest), "utf-8")
            new.rename(into)
        except OSError as error:
            raise LimitError(f"The snapshot could not be written: {error.strerror}.", code=ErrorCode.DISK_FULL) from error
        self._images[token] = state
        return sum(file.stat().st_blocks * 512 for file in into.iterdir())

    def read_image(self, snapshot: Path, shape: Shape | None) -> tuple[dict[str, Any], str]:
        """Return the state that a snapshot stands for, and why it cannot be restored; empty if it can."""
        try:
            manifest = json.loads((snapshot / MANIFEST).read_text("utf-8"))
        except (OSError, ValueError):
            return {}, "its manifest is missing or cannot be read"
        misfits = {
            f"it was written by the {manifest['driver']} driver": manifest["driver"] != self.name,
            f"the build {manifest['version']} that wrote it is not here": manifest["version"] != self.version,
            "it was written on another root file system": shape is not None and manifest["root"] != shape.root.digest,
            "it was written with other limits": shape is not None and manifest["limits"] != _shown(shape.limits),
            "its files are missing": manifest["token"] not in self._images,
        }
        for misfit, is_one in misfits.items():
            if is_one:
                return {}, misfit
        return self._images[manifest["token"]], ""


def _shown(limits: Limits) -> list[float]:
    """Return the limits that programs inside can see."""
    return [limits.memory_bytes, limits.cpus]


def _exit_of(reason: str) -> Exit:
    return Exit(ExitReason.EXITED) if reason == "exited" else Exit(ExitReason.KILLED, "status -9")


def _unusable(misfit: str) -> ConflictError:
    return ConflictError(
        f"This snapshot cannot be restored here: {misfit}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Use the limits and the template that the snapshot was written with, or make a new one.",
        fields={"reason": misfit},
    )
