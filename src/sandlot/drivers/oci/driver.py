"""The driver of one OCI runtime: blanks are prepared, booted, adopted and swept.

What happens when, and why it is safe to be killed in between:

=========  ==========================================================================================================
prepare    record, folder, control group, pipes, disk image; meanwhile the stage starts. Then the stage enters the
           group and makes its mounts. It ends by itself when the service dies before ``boot``.
boot       record, OCI bundle; the stage starts the runtime, becomes the keeper and writes ``live``.
restore    OCI bundle; the stage lets the runtime create, becomes the keeper and writes ``live``; the runtime restores; record (``blank.py``).
adopt      ``live`` names processes that are the same ones still, in the group of that name.
sweep      names of folders, groups, loop devices' files and owners of ids, less those to keep: each is given back as any.
=========  ==========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from sandlot.drivers.oci import probing
from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.blank import OciBlank, unusable
from sandlot.drivers.oci.checkpoint import images
from sandlot.drivers.oci.checkpoint import manifest as manifests
from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.holding import Holding, new_folders
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.places import Folder, is_ref, new_ref, node_group, runtimes_folder, sandboxes_folder, saved_images
from sandlot.drivers.oci.programs import Programs
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Place, Program, Runtime
from sandlot.drivers.registry import DriverSettings, driver_names
from sandlot.host import disks
from sandlot.host.cgroups import Cgroup, detect_layout, group_names
from sandlot.host.hierarchies import Layout
from sandlot.host.idranges import RANGES, IdRanges
from sandlot.host.launch import Stage, StageError, read_started
from sandlot.host.processes import open_process
from sandlot.host.threads import run_blocking
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InternalError, NotFoundError
from sandlot.model.ports import Capabilities, DriverCapability, Instance, PreparedSandbox, ProbeResult, Resources
from sandlot.model.specs import Limits, Shape

_TEMPLATES_KEPT = 16
"""Empty disks of so many sizes are remembered, about 0.2 MiB each."""

_LOOK_AGAIN_S = 60.0

_FOLDER_BYTES = 1024 * 1024
"""A sandbox's folder beside its disk: bundle, state and logs, all bounded."""


class OciDriver:
    """Isolation by one OCI runtime.

    Args:
        name: What people choose it by.
        settings: Node and state directory.
        runtime: What is particular to the runtime.
    """

    def __init__(self, name: str, settings: DriverSettings, runtime: Runtime) -> None:
        self.name = name
        self._settings = settings
        self._runtime = runtime
        self._sandboxes = sandboxes_folder(settings.data_dir)
        self._holdings: dict[str, Holding] = {}
        self._programs = Programs(runtime, runtimes_folder(settings.data_dir))
        self._layout: Layout | None = None
        self._disks: dict[int, disks.DiskTemplate] = {}
        self._lock = threading.Lock()
        self._probed: Capabilities | None = None
        self._probed_s = 0.0

    def probe(self) -> Capabilities:
        """What this driver can do on this host, found by starting a sandbox; the first call takes about a second.

        A no is looked at again, because whoever reads its reason may do something about it, and a service need not be
        started anew for that. A yes stays. A no to snapshots alone, of a disk that was full for one, is looked at again after a minute,
        by one caller: the others' sandboxes do not wait for that.
        """
        known = self._probed
        if known is not None and known.can(DriverCapability.BOOT) and (self._lock.locked() or not self._is_worth_another_look(known)):
            return known
        with self._lock:
            if self._probed is None or not self._probed.can(DriverCapability.BOOT) or self._is_worth_another_look(self._probed):
                # For the event loop of the probe; a sweep of this one must see that the probe's sandbox is no stray.
                fresh = OciDriver(self.name, self._settings, self._runtime)
                fresh._holdings = self._holdings
                fresh._programs = self._programs
                found = probing.probe(self.name, self.program, self._runtime.absent, fresh, self._settings.data_dir)
                self._probed, self._probed_s = _with_every_yes(found, self._probed), time.monotonic()
            return self._probed

    def _is_worth_another_look(self, probed: Capabilities) -> bool:
        missing = not probed.can(DriverCapability.SNAPSHOT) and DriverCapability.SNAPSHOT not in self._runtime.absent
        return missing and time.monotonic() > self._probed_s + _LOOK_AGAIN_S

    def fingerprint(self) -> str:
        """Everything that its snapshots depend on: the runtime's content.

        Raises:
            HostError: There is no runtime.
        """
        program = self._programs.newest()
        return f"{program.name}:{program.sha256}"

    def program(self) -> Program:
        """The runtime's program to start sandboxes on. Blocks for some tenths of a second when it is new, else for a stat.

        Raises:
            HostError: It is not installed, too old, or cannot be kept.
        """
        return self._programs.current()

    def max_resources(self, limits: Limits) -> Resources:
        """The most that a sandbox can take of the host; the runtime and the keeper are in its group, so they are paid from its limits."""
        group = self._runtime.group_limits(limits)
        image = disks.image_bytes(limits.disk_bytes, self._runtime.bytes_per_inode)
        return Resources(memory_bytes=group.memory_bytes, disk_bytes=image + _FOLDER_BYTES, pids=group.pids)

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Whether it is whole, and the build of the runtime that wrote it is at hand. Blocks for a moment, longer for a build that is new to it."""
        if reason := self._runtime.absent.get(DriverCapability.SNAPSHOT, ""):
            return ProbeResult(ok=False, reason=reason)
        manifest = manifests.read(snapshot)
        if manifest is None:
            return ProbeResult(ok=False, reason="its manifest is missing or cannot be read")
        if manifest.driver != self.name:
            return ProbeResult(ok=False, reason=f"it was written by the {manifest.driver} driver")
        reason = images.lacks(snapshot, manifest) or self._programs.why_not(manifest.runtime_sha256)
        return ProbeResult(ok=not reason, reason=reason)

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
        """Make a blank sandbox: everything but the runtime's own processes. About 15 ms.

        Args:
            shape: All that must be known before it is anyone's.
            snapshot: What it is going to be restored from: it gets the build of the runtime that wrote that.

        Raises:
            ConflictError: ``snapshot_unusable``: the snapshot is not whole, or what wrote it is not at hand.
            HostError: The host lacks something; the hint gives the fix.
        """
        if not (shape.root.path / "").is_dir():
            raise InternalError(f"The root file system {shape.root.path} does not exist.")
        program = await run_blocking(self.program if snapshot is None else partial(self._writer, snapshot))
        holding = self._hold(new_ref(self._settings.node, self._settings.ids))
        try:
            first_id = await self._prepare(holding, shape, program)
        except BaseException as error:
            await holding.let_go()
            if isinstance(error, StageError | OSError):
                raise HostError(
                    f"The host refused to prepare a sandbox: {error}.",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="`sandlot doctor` says what is missing.",
                ) from error
            raise
        return OciBlank(holding, shape, self._runtime, program, first_id)

    def _writer(self, snapshot: Path) -> Program:
        """The build that wrote a snapshot."""
        verdict, manifest = self.restorable(snapshot), manifests.read(snapshot)
        if not verdict.ok or manifest is None:
            raise unusable(verdict.reason)
        return self._programs.kept(manifest.runtime_sha256)

    async def adopt(self, ref: str) -> Instance:
        """Take over a live sandbox after the service restarted.

        Raises:
            NotFoundError: Nothing of that ref is alive, or it was being destroyed.
            ConflictError: This driver has it already.
        """
        if not is_ref(ref, self._settings.node):
            raise _not_alive(ref)
        folder = Folder(self._sandboxes / ref)
        record = await run_blocking(records.read, folder.record)
        if record is None or record.step is not Step.BOOT or record.driver != self.name:
            raise _not_alive(ref)
        try:
            started = read_started(await run_blocking(folder.live.read_text, encoding="ascii"))
        except (OSError, ValueError):
            raise _not_alive(ref) from None
        sandbox = open_process(started.sandbox)
        if sandbox is None:
            raise _not_alive(ref)
        os.close(sandbox)
        if ref in self._holdings:
            raise ConflictError(f"Sandbox {ref} is already held.", code=ErrorCode.CONFLICT)
        holding = self._hold(ref)
        if started.sandbox.pid not in holding.cgroup.pids():
            self._holdings.pop(ref, None)
            raise _not_alive(ref)
        holding.record = record
        instance = OciInstance(holding, record, started, self._runtime, partial(self._programs.kept, record.runtime_sha256))
        await instance.settle()
        return instance

    async def sweep(self, keep: Collection[str]) -> int:
        """Remove everything of this node that is neither kept nor held by this very driver; how many sandboxes that were.

        Raises:
            InternalError: Something could not be removed; all else was.
        """
        strays = await run_blocking(self._refs_on_host)
        strays -= set(keep) | set(self._holdings)
        strays -= await run_blocking(self._others, strays)
        holdings = [self._hold(ref) for ref in strays]
        failures = [failure for failure in await asyncio.gather(*(holding.discard() for holding in holdings)) if failure is not None]
        await run_blocking(self._forget_probes)
        await run_blocking(self._forget_unneeded)
        # Empty parents that a killed service left; others' sandboxes keep them.
        await run_blocking(Cgroup(self._detected(), node_group(self._settings.node)).remove)
        if failures:
            raise failures[0]
        return len(strays)

    def _forget_probes(self) -> None:
        """Remove what a probe left that was killed; one that goes on holds the lock."""
        if self._lock.acquire(blocking=False):
            try:
                probing.clean(self.name, self._settings.data_dir)
            finally:
                self._lock.release()

    def _forget_unneeded(self) -> None:
        """Remove folders that were not finished, and builds of the runtime that nothing names any more."""
        with contextlib.suppress(FileNotFoundError):
            for beside in self._sandboxes.glob(f"{new_folders(self.name)}*"):
                if beside.name.removeprefix(new_folders(self.name)) not in self._holdings:
                    shutil.rmtree(beside, ignore_errors=True)
        if DriverCapability.SNAPSHOT not in self._runtime.absent:
            run = (records.read(file) for file in self._sandboxes.glob("*/record.json"))
            wrote = (manifests.read(image) for image in saved_images(self._settings.data_dir))
            self._programs.prune({each.runtime_sha256 for each in (*run, *wrote) if each is not None})

    def _group(self, ref: str) -> Cgroup:
        return Cgroup(self._detected(), node_group(self._settings.node) / ref)

    def _detected(self) -> Layout:
        if self._layout is None:
            self._layout = detect_layout()
        return self._layout

    def _hold(self, ref: str) -> Holding:
        holding = Holding(Folder(self._sandboxes / ref), self._group(ref), self._forget)
        holding.own_ids = self._runtime.own_ids
        self._holdings[ref] = holding
        return holding

    def _forget(self, ref: str) -> None:
        self._holdings.pop(ref, None)

    async def _prepare(self, holding: Holding, shape: Shape, program: Program) -> int | None:
        """Everything; the first of its own ids, where it takes some."""
        folder = holding.folder
        record = Record(
            ref=folder.ref,
            step=Step.PREPARE,
            driver=self.name,
            runtime=str(program.path),
            runtime_sha256=program.sha256,
            root_digest=shape.root.digest,
            limits=shape.limits,
        )
        await run_blocking(holding.make_folder, record)
        # The interpreter starts while the rest is made.
        spawning = asyncio.ensure_future(Stage.spawn(folder.ref, folder.stage_log))
        try:
            first_id = await run_blocking(self._furnish, holding, shape, program)
        finally:
            holding.stage = await spawning
        place = Place(
            shape=shape,
            program=program,
            folder=folder,
            doors=holding.cgroup.doors,
            has_image=not program.limits_disk,
            has_tmp=await run_blocking(_is_empty, shape.root.path / "tmp"),
            first_id=first_id,
            boot_id=str(uuid.UUID(bytes=self._settings.ids(16), version=4)),
        )
        await holding.stage.carry_out(self._runtime.plan(place))
        return first_id

    def _furnish(self, holding: Holding, shape: Shape, program: Program) -> int | None:
        template = None
        if not program.limits_disk:
            size = shape.limits.disk_bytes
            template = self._disks.get(size)
            if template is None:
                template = disks.make_template(size, holding.folder.path, self._runtime.bytes_per_inode)
                if len(self._disks) >= _TEMPLATES_KEPT:
                    self._disks.clear()
                self._disks[size] = template
        holding.furnish(self._runtime.group_limits(shape.limits), template)
        if not self._runtime.own_ids:
            return None
        # After the group was made: a range whose owner has none is anybody's.
        layout, start = self._detected(), int.from_bytes(self._settings.ids(2), "big") % RANGES
        return IdRanges().take(str(holding.cgroup.name), lambda name: Cgroup(layout, PurePosixPath(name)).exists(), start)

    def _others(self, refs: Collection[str]) -> set[str]:
        """Those that say of themselves that another driver made them; it will sweep them, or holds them."""
        others = set(driver_names()) - {self.name}
        return {ref for ref in refs if (record := records.read(Folder(self._sandboxes / ref).record)) is not None and record.driver in others}

    def _refs_on_host(self) -> set[str]:
        node = self._settings.node
        names = group_names(self._detected(), node_group(node))
        with contextlib.suppress(FileNotFoundError):
            names.update(os.listdir(self._sandboxes))  # noqa: PTH208 - names, not paths
        names.update(file.parent.name for file in disks.loops_below(self._sandboxes).values())
        names.update(PurePosixPath(owner).name for owner in IdRanges().owners())
        return {name for name in names if is_ref(name, node)}


def gvisor(settings: DriverSettings) -> OciDriver:
    """The ``gvisor`` driver: runsc, a kernel in user space between the code and the host."""
    return OciDriver("gvisor", settings, Runsc())


def container(settings: DriverSettings) -> OciDriver:
    """The ``container`` driver: crun, on the host's own kernel."""
    return OciDriver("container", settings, Crun())


def _with_every_yes(found: Capabilities, before: Capabilities | None) -> Capabilities:
    if before is None:
        return found
    return replace(found, abilities={**found.abilities, **{ability: verdict for ability, verdict in before.abilities.items() if verdict.ok}})


def _is_empty(folder: Path) -> bool:
    if folder.is_symlink():  # an image may say so; it must not lead a mount astray
        return False
    try:
        return next(folder.iterdir(), None) is None
    except OSError:
        return False


def _not_alive(ref: str) -> NotFoundError:
    return NotFoundError(f"No live sandbox {ref}.", code=ErrorCode.SANDBOX_NOT_FOUND, fields={"ref": ref})
