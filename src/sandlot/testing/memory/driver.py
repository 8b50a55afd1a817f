"""Driver whose sandboxes are objects in memory. A sandbox starts in well under a millisecond, and a test can make every step fail.

The guest is scripted (:mod:`sandlot.testing.memory.guest`), and nothing isolates the scripts from the test. The driver keeps the content of a
snapshot in memory and writes only a token into the folder of the snapshot, so that folders can be copied and removed like those of a real driver. The
driver outlives the services of a test: a second service on the same driver adopts the sandboxes of the first service.
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

from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.ports import (
    Attachment,
    ByteStream,
    Capabilities,
    Change,
    DriverCapability,
    Exit,
    ExitReason,
    HeadroomRange,
    ProbeResult,
    Resources,
    RuntimeInfo,
    Usage,
    VolumeView,
)
from sandlot.model.specs import Limits, SandboxSpec, Shape
from sandlot.testing.memory.guest import MemoryGuest, Scripts
from sandlot.testing.memory.timers import GuestClock

MANIFEST = "memory.json"
_SAVED = "the sandbox was saved to a snapshot"
_DESTROYED = "the sandbox was destroyed"


@dataclass
class Faults:
    """Exceptions and waits that a test sets up for the steps of a driver.

    The steps are ``prepare``, ``attach``, ``warm``, ``boot``, ``restore``, ``connect``, ``configure``, ``pause``, ``resume``, ``snapshot``,
    ``withdraw``, ``usage``, ``destroy``, ``clean`` (second part of ``destroy``, after the sandbox has ended), ``adopt`` and ``sweep``. The step
    ``withdraw`` is the withdrawal of headroom after a snapshot or restore; an exception in this step ends the sandbox as out of memory.

    Attributes:
        raises: Step -> exceptions for the next calls of the step. Each call removes the first exception from the list and raises this exception.
        reason: If not empty, the probe reports all capabilities as missing, with this reason.
    """

    raises: dict[str, list[Exception]] = field(default_factory=dict)
    reason: str = ""
    _holds: dict[str, asyncio.Event] = field(default_factory=dict)
    _reached: dict[str, asyncio.Event] = field(default_factory=dict)

    def hold(self, step: str) -> asyncio.Event:
        """Block all calls of a step until the returned event is set."""
        self._holds[step], self._reached[step] = asyncio.Event(), asyncio.Event()
        return self._holds[step]

    def release(self, step: str) -> None:
        """Let the blocked calls of a step continue. Later calls of the step are not blocked."""
        self._holds.pop(step).set()

    async def reach(self, step: str) -> None:
        """Wait until :meth:`hold` has blocked a call of the step."""
        await self._reached[step].wait()

    def is_prepared(self, step: str) -> bool:
        """Return whether :meth:`hold` blocks the step or an exception waits for it."""
        return step in self._holds or bool(self.raises.get(step))

    async def at(self, step: str) -> None:
        """Wait if :meth:`hold` blocks the step. Then raise the step's next exception, if any. The driver calls this method in each step."""
        await asyncio.sleep(0)
        if step in self._holds:
            self._reached[step].set()
            await self._holds[step].wait()
        if waiting := self.raises.get(step):
            raise waiting.pop(0)


class MemoryInstance:
    """One started sandbox, live or ended.

    Attributes:
        guest: Scripted guest of the sandbox.
        changes: Changes of limits and volumes that were applied, oldest first.
        volumes: Slot number -> attached volume.
        granted: Headroom of each snapshot and restore, oldest first, in bytes.
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
        self.granted: list[int] = []
        self.has_sparse_disk = driver.has_sparse_disks
        self._headroom_bytes = 0
        self._withdrawal: asyncio.Task[None] | None = None
        self._withdrawn = asyncio.Event()
        self._withdrawn.set()
        self._exit: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        guest.ended.add_done_callback(lambda ended: self._end(_exit_of(ended.result())))

    @property
    def is_paused(self) -> bool:
        """True if the sandbox is paused."""
        return self.guest.is_frozen

    @property
    def has_ended(self) -> bool:
        """True if the sandbox has ended."""
        return self._exit.done()

    def crash(self, reason: ExitReason = ExitReason.CRASHED, detail: str = "status -9") -> None:
        """End the sandbox from outside, as a signal to its runtime does."""
        self._end(Exit(reason, detail))

    async def connect(self) -> ByteStream:
        """Return a new byte stream to the guest."""
        await self._driver.faults.at("connect")
        self._check_live()
        if self.guest.stream is not None:
            raise ConflictError("The sandbox already has a connection; only one is possible at a time.", code=ErrorCode.CONFLICT)
        return self.guest.connect()

    async def configure(self, change: Change) -> None:
        """Apply a change of limits or volumes as a whole, or not at all. Applied changes are recorded in ``changes``."""
        await self._driver.faults.at("configure")
        self._check_live()
        for capability in change.needs(self.limits):
            self._driver.require(capability)
        if self.is_paused:
            raise ConflictError("A paused sandbox cannot be changed.", code=ErrorCode.CONFLICT, hint="Resume the sandbox first.")
        self.changes.append(change)
        self.limits = change.over(self.limits)
        for slot in change.without:
            self.volumes.pop(slot, None)
        for volume in change.volumes:
            self.volumes[volume.slot] = volume

    async def pause(self) -> None:
        """Freeze the sandbox. Idempotent."""
        await self._driver.faults.at("pause")
        self._driver.require(DriverCapability.PAUSE)
        self._check_live()
        self.guest.freeze()

    async def resume(self) -> None:
        """Thaw the sandbox. Does nothing to a sandbox that is not paused."""
        await self._driver.faults.at("resume")
        self._check_live()
        self.guest.thaw()

    async def snapshot_headroom(self) -> HeadroomRange:
        """Return the driver's attribute ``headroom``, or more if an earlier operation has left more."""
        self._check_live()
        return HeadroomRange(*(max(each, self._headroom_bytes) for each in (self._driver.headroom.least_bytes, self._driver.headroom.most_bytes)))

    @property
    def headroom_bytes(self) -> int:
        """Headroom that is not withdrawn yet, in bytes."""
        return self._headroom_bytes

    async def wait_headroom_withdrawn(self) -> None:
        """Wait until the sandbox has no headroom."""
        await self._withdrawn.wait()

    def grant(self, headroom_bytes: int) -> None:
        """Grant headroom for a snapshot or restore. Used by the driver."""
        if self._withdrawal is not None:
            self._withdrawal.cancel()
        self.granted.append(headroom_bytes)
        self._headroom_bytes = max(self._headroom_bytes, headroom_bytes)
        if self._headroom_bytes:
            self._withdrawn.clear()

    def withdraw(self) -> None:
        """Withdraw the headroom: at once, unless a test has prepared the step ``withdraw``. Used by the driver."""
        if self._driver.faults.is_prepared("withdraw") and not self._exit.done():
            self._withdrawal = asyncio.get_running_loop().create_task(self._withdraw())
        else:
            self._has_withdrawn()

    async def _withdraw(self) -> None:
        try:
            await self._driver.faults.at("withdraw")
        except Exception as error:  # noqa: BLE001 - any exception of the test
            self.crash(ExitReason.OOM, str(error))
        else:
            self._has_withdrawn()

    def _has_withdrawn(self) -> None:
        self._headroom_bytes = 0
        self._withdrawn.set()

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True, headroom_bytes: int) -> int:
        """Keep a copy of the guest in the driver, write a token for the copy into the new folder ``into``, and return the folder's size in bytes.

        With less headroom than the driver's attribute ``headroom`` requires, the sandbox ends as out of memory.
        """
        del durable
        self._driver.require(DriverCapability.SNAPSHOT)
        self._check_live()
        if await asyncio.to_thread(into.exists):
            raise ConflictError(f"The folder {into} exists already.", code=ErrorCode.CONFLICT, hint="Pass a folder that does not exist.")
        self.grant(headroom_bytes)
        try:
            await self._driver.faults.at("snapshot")
            if self._headroom_bytes < self._driver.headroom.least_bytes:
                self.crash(ExitReason.OOM, "the snapshot had too little headroom")
            self._check_live()
            state = self.guest.save()
            size = self._driver.write_image(into, state, self._shape, self.limits)
            if not keep_running:
                self._end(Exit(ExitReason.KILLED, _SAVED))
        finally:
            self.withdraw()
        return size

    async def usage(self) -> Usage:
        """Return the attribute ``usage_now``, which a test may set to any usage."""
        await self._driver.faults.at("usage")
        self._check_live()
        return self.usage_now

    async def wait(self) -> Exit:
        """Wait until the sandbox has ended, and return the reason and details of its end."""
        return await asyncio.shield(self._exit)

    async def destroy(self) -> None:
        """End the sandbox and remove it from the driver. Idempotent."""
        await self._driver.faults.at("destroy")
        self._end(Exit(ExitReason.KILLED, _DESTROYED))
        await self._driver.faults.at("clean")
        self._driver.forget(self.ref)

    def _end(self, exit_: Exit) -> None:
        if not self._exit.done():
            self._exit.set_result(exit_)
        if self._withdrawal is not None:
            self._withdrawal.cancel()
        self._has_withdrawn()
        self.guest.end("killed")

    def _check_live(self) -> None:
        if self._exit.done():
            ended = self._exit.result()
            fields = {"reason": ended.reason.value, "detail": ended.detail}
            raise SandboxEndedError(f"The sandbox has ended ({ended.reason}).", code=ErrorCode.SANDBOX_ENDED, fields=fields)


class MemoryPreparedSandbox:
    """A prepared sandbox in memory. No guest runs in it."""

    def __init__(self, driver: MemoryDriver, shape: Shape, ref: str) -> None:
        self._driver = driver
        self._shape = shape
        self.ref = ref
        self.is_warm = False
        self._volumes: list[Attachment] = []
        self._instance: MemoryInstance | None = None
        self._is_used = self._is_destroyed = False

    async def warm(self) -> None:
        """Set ``is_warm``. A real driver starts processes of its runtime here, to make :meth:`restore` faster. Idempotent."""
        self._driver.require(DriverCapability.SNAPSHOT)
        self._check()
        await self._driver.faults.at("warm")
        self._check_alive()
        self.is_warm = True

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Attach volumes before the sandbox starts."""
        await self._driver.faults.at("attach")
        self._driver.require(DriverCapability.VOLUMES)
        self._check_alive()
        self._volumes.extend(volumes)

    async def boot(self, spec: SandboxSpec) -> MemoryInstance:
        """Start the sandbox with a new guest."""
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

    async def restore(self, snapshot: Path, spec: SandboxSpec, *, headroom_bytes: int) -> MemoryInstance:
        """Start the sandbox with a copy of the guest that was saved in a snapshot.

        With less headroom than the driver's attribute ``headroom`` requires, the restore fails.
        """
        del spec
        self._driver.require(DriverCapability.SNAPSHOT)
        state, problem = self._driver.read_image(snapshot, self._shape)
        if problem:
            raise _unusable(problem)
        self._check()
        self._is_used = True
        try:
            await self._driver.faults.at("restore")
            self._check_alive()
            self._check_headroom(headroom_bytes)
        except BaseException:
            self._driver.forget(self.ref)
            raise
        guest = MemoryGuest(self._driver.scripts, self._driver.clock)
        guest.load(state)
        instance = self._start(guest)
        instance.grant(headroom_bytes)
        instance.withdraw()
        return instance

    async def destroy(self) -> None:
        """Destroy the sandbox, whether it was started or not. Idempotent."""
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
            raise ConflictError("This prepared sandbox was started already.", code=ErrorCode.CONFLICT, hint="Prepare another sandbox.")

    def _check_headroom(self, headroom_bytes: int) -> None:
        if headroom_bytes < self._driver.headroom.least_bytes:
            raise HostError("The restore had too little headroom.", code=ErrorCode.HOST_NOT_READY)

    def _check_alive(self) -> None:
        if self._is_destroyed:
            raise SandboxEndedError("This sandbox was destroyed.", code=ErrorCode.SANDBOX_ENDED, fields={"reason": "killed", "detail": _DESTROYED})


class MemoryDriver:
    """Driver whose sandboxes are objects in memory.

    Args:
        name: Name under which the driver is registered.
        clock: Clock of the guests' timers; None: the clock of the event loop.
        capabilities: Capabilities that the driver has.

    Attributes:
        faults: Exceptions and waits that the test sets up.
        scripts: Scripts of all guests, for programs, cells and TCP ports.
        booted: All instances that were started, the oldest first.
        prepared: All sandboxes that were prepared, the oldest first.
        kept_in_sweeps: Argument ``keep`` of each call of :meth:`sweep`.
        headroom: Headroom that every snapshot and restore requires. None by default.
        has_sparse_disks: Value of ``has_sparse_disk`` of sandboxes that start from now on.
    """

    def __init__(
        self, name: str = "gvisor", clock: GuestClock | None = None, capabilities: Collection[DriverCapability] = tuple(DriverCapability)
    ) -> None:
        self.name, self.volume_view = name, VolumeView.TREE
        self.clock = clock
        self.capabilities = frozenset(capabilities)
        self.faults = Faults()
        self.scripts = Scripts()
        self.booted: list[MemoryInstance] = []
        self.prepared: list[MemoryPreparedSandbox] = []
        self.kept_in_sweeps: list[frozenset[str]] = []
        self.version = "memory-1"
        self.headroom = HeadroomRange()
        self.has_sparse_disks = False
        self._held: dict[str, MemoryPreparedSandbox | MemoryInstance] = {}
        self._in_use: set[str] = set()
        self._images: dict[str, dict[str, Any]] = {}
        self._numbers = itertools.count(1)

    # -- observed and controlled by tests -----------------------------------------------------------------------------

    @property
    def instances(self) -> list[MemoryInstance]:
        """Live sandboxes, the oldest first."""
        return [instance for instance in self.booted if not instance.has_ended]

    def fail_next(self, step: str, *errors: Exception) -> None:
        """Make the next calls of a step raise these errors, one error for each call."""
        self.faults.raises.setdefault(step, []).extend(errors)

    def hold(self, step: str) -> asyncio.Event:
        """Block all calls of a step until the returned event is set. ``faults.reach`` waits until a call is blocked."""
        return self.faults.hold(step)

    def leftovers(self) -> list[str]:
        """Return the references of all prepared and started sandboxes that were not destroyed, sorted."""
        return sorted(self._held)

    def restart(self) -> None:
        """Simulate a restart of the service: no sandbox counts as in use afterwards, so ``adopt`` and ``sweep`` find all sandboxes."""
        self._in_use.clear()

    def abandon(self, ref: str) -> None:
        """Simulate a driver that has given up the removal of a sandbox: the next :meth:`sweep` finds the sandbox."""
        self._in_use.discard(ref)

    def guest(self, ref: str) -> MemoryGuest:
        """Return the guest of a live sandbox."""
        return next(instance.guest for instance in self.instances if instance.ref == ref)

    # -- the driver's contract ----------------------------------------------------------------------------------------

    def probe(self) -> Capabilities:
        """Return the capabilities of the driver; for each missing capability, the reason."""
        results = {
            capability: ProbeResult(ok=not self.faults.reason, reason=self.faults.reason)
            if capability in self.capabilities
            else ProbeResult(ok=False, reason="the in-memory driver was created without this capability")
            for capability in DriverCapability
        }
        return Capabilities(self.name, RuntimeInfo(self.name, self.version), results)

    def fingerprint(self) -> str:
        """Return the version of the driver. A snapshot can be restored only by a driver with the same version."""
        return self.version

    def max_resources(self, limits: Limits) -> Resources:
        """Return the limits as resources. A sandbox in memory has no runtime that would use more."""
        return Resources(memory_bytes=limits.memory_bytes, disk_bytes=limits.disk_bytes, pids=limits.pids)

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Return whether a snapshot can be restored, and if not, the reason."""
        if DriverCapability.SNAPSHOT not in self.capabilities:
            return ProbeResult(ok=False, reason=self.probe().why_not(DriverCapability.SNAPSHOT))
        _, problem = self.read_image(snapshot, None)
        return ProbeResult(ok=not problem, reason=problem)

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> MemoryPreparedSandbox:
        """Prepare a sandbox of this shape. ``snapshot`` is ignored."""
        del snapshot
        await self.faults.at("prepare")
        prepared = MemoryPreparedSandbox(self, shape, f"memory-{next(self._numbers)}")
        self.prepared.append(prepared)
        self._held[prepared.ref] = prepared
        self._in_use.add(prepared.ref)
        return prepared

    async def restore_headroom(self, snapshot: Path, limits: Limits) -> HeadroomRange:
        """Return the attribute ``headroom``."""
        del snapshot, limits
        return self.headroom

    async def adopt(self, ref: str) -> MemoryInstance:
        """Take over the live sandbox with this reference from an earlier service, and return the sandbox."""
        await self.faults.at("adopt")
        for instance in self.instances:
            if instance.ref == ref:
                instance.guest.stream = None
                self._in_use.add(ref)
                return instance
        raise NotFoundError(f"There is no live sandbox with the reference {ref}.", code=ErrorCode.SANDBOX_NOT_FOUND)

    async def sweep(self, keep: Collection[str]) -> int:
        """Destroy the sandboxes that are not in use, and return their number.

        A sandbox is in use from :meth:`prepare` or :meth:`adopt` to the next :meth:`restart` or :meth:`abandon`.

        Args:
            keep: References of sandboxes that must not be destroyed.
        """
        self.kept_in_sweeps.append(frozenset(keep))
        await self.faults.at("sweep")
        swept = [held for ref, held in self._held.items() if ref not in self._in_use and ref not in keep]
        for sandbox in swept:
            await sandbox.destroy()
        return len(swept)

    # -- used by its sandboxes ----------------------------------------------------------------------------------------

    def require(self, capability: DriverCapability) -> None:
        """Check that the driver has a capability.

        Raises:
            UnsupportedError: The driver does not have the capability.
        """
        can = self.probe()
        if not can.can(capability):
            reason = can.why_not(capability)
            raise UnsupportedError(f"The driver does not support {capability}: {reason}.", code=ErrorCode.UNSUPPORTED, fields={"reason": reason})

    def add(self, instance: MemoryInstance) -> None:
        """Register a started sandbox."""
        self.booted.append(instance)
        self._held[instance.ref] = instance

    def forget(self, ref: str) -> None:
        """Remove a sandbox from the list that :meth:`leftovers` returns. Idempotent."""
        self._held.pop(ref, None)

    def write_image(self, into: Path, state: dict[str, Any], shape: Shape, limits: Limits) -> int:
        """Keep the state of a guest in memory, write a token for the state into the new folder ``into``, and return the folder's size in bytes."""
        token = f"image-{next(self._numbers)}"
        new = into.with_name(f"{into.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        manifest = {"token": token, "driver": self.name, "version": self.version, "root": shape.root.digest, "limits": _shown(limits)}
        try:
            new.mkdir(parents=True)
            (new / MANIFEST).write_text(json.dumps(manifest), "utf-8")
            new.rename(into)
        except OSError as error:
            raise LimitError(f"The snapshot {into} could not be written: {error.strerror}.", code=ErrorCode.NODE_DISK_FULL) from error
        self._images[token] = state
        return sum(file.stat().st_blocks * 512 for file in into.iterdir())

    def read_image(self, snapshot: Path, shape: Shape | None) -> tuple[dict[str, Any], str]:
        """Read a snapshot, and check that it can be restored.

        Args:
            snapshot: Folder of the snapshot.
            shape: Shape of the sandbox to restore; None: only the snapshot itself is checked.

        Returns:
            The state of the guest and an empty text. If the snapshot cannot be restored: an empty state and the reason.
        """
        try:
            manifest = json.loads((snapshot / MANIFEST).read_text("utf-8"))
        except (OSError, ValueError):
            return {}, "its manifest is missing or cannot be read"
        problems = {
            f"it was written by the driver {manifest['driver']}": manifest["driver"] != self.name,
            f"the runtime build {manifest['version']} that wrote it is missing": manifest["version"] != self.version,
            "it was written on another root file system": shape is not None and manifest["root"] != shape.root.digest,
            "it was written with other limits": shape is not None and manifest["limits"] != _shown(shape.limits),
            "its files are missing": manifest["token"] not in self._images,
        }
        for problem, applies in problems.items():
            if applies:
                return {}, problem
        return self._images[manifest["token"]], ""


def _shown(limits: Limits) -> list[float]:
    """Return the limits that programs inside a sandbox can see, as a list: memory in bytes, number of cores."""
    return [limits.memory_bytes, limits.cpus]


def _exit_of(reason: str) -> Exit:
    return Exit(ExitReason.EXITED) if reason == "exited" else Exit(ExitReason.CRASHED, "status -9")


def _unusable(problem: str) -> ConflictError:
    return ConflictError(
        f"This snapshot cannot be restored by this driver: {problem}.",
        code=ErrorCode.SNAPSHOT_UNUSABLE,
        hint="Use the limits and the template of the snapshot, or take a new snapshot.",
        fields={"reason": problem},
    )
