"""The driver of one OCI runtime: blanks are prepared, booted, adopted and swept.

What happens when, and why it is safe to be killed in between:

=========  ==========================================================================================================
prepare    record, folder, control group, pipes, disk image; meanwhile the stage starts. Then the stage enters the
           group and makes its mounts. It ends by itself when the service dies before ``boot``.
boot       record, OCI bundle; the stage starts the runtime, becomes the keeper and writes ``live``.
adopt      ``live`` names processes that are the same ones still, in the group of that name.
sweep      names of folders, groups, loop devices' files and owners of ids, less those to keep: each is given back as any.
=========  ==========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
import uuid
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path, PurePosixPath

from sandlot.drivers.oci import probing
from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.holding import Holding
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.places import VIEW_FOLDER, Folder, is_ref, new_ref, node_group, sandboxes_folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Place, Program, Runtime
from sandlot.drivers.registry import DriverSettings, driver_names
from sandlot.host import disks
from sandlot.host.cgroups import Cgroup, detect_layout, group_names
from sandlot.host.hierarchies import Layout
from sandlot.host.idranges import RANGES, IdRanges
from sandlot.host.launch import Order, Stage, StageError, read_started
from sandlot.host.processes import open_process
from sandlot.host.threads import run_blocking
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InternalError, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.ports import Ability, Blank, Capabilities, Instance, Resources
from sandlot.model.specs import Limits, SandboxSpec, Shape

_TEMPLATES_KEPT = 16
"""Empty disks of so many sizes are remembered, about 0.2 MiB each."""

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
        self._program: tuple[Program, tuple[int, ...]] | None = None
        self._layout: Layout | None = None
        self._disks: dict[int, disks.DiskTemplate] = {}
        self._lock = threading.Lock()
        self._probed: Capabilities | None = None

    def probe(self) -> Capabilities:
        """What this driver can do on this host, found by starting a sandbox; the first call takes about a second.

        A no is looked at again, because whoever reads its reason may do something about it, and a service need not be
        started anew for that. A yes stays.
        """
        with self._lock:
            if self._probed is None or not self._probed.can(Ability.BOOT):
                # For the event loop of the probe; a sweep of this one must see that the probe's sandbox is no stray.
                fresh = OciDriver(self.name, self._settings, self._runtime)
                fresh._holdings = self._holdings
                self._probed = probing.probe(self.name, self.program, self._runtime.absent, fresh, self._settings.data_dir)
            return self._probed

    def fingerprint(self) -> str:
        """Everything that its snapshots depend on: the runtime's content.

        Raises:
            HostError: There is no runtime.
        """
        program = self.program()
        return f"{program.name}:{program.sha256}"

    def program(self) -> Program:
        """The runtime's program. Blocks for some ten milliseconds when it is new, else for a stat.

        Raises:
            HostError: It is not installed, or too old.
        """
        if self._program is not None:
            known, seen = self._program
            with contextlib.suppress(FileNotFoundError):
                if _stamp(known.path) == seen:
                    return known
        found = self._runtime.find()
        self._program = found, _stamp(found.path)
        return found

    def takes(self, limits: Limits) -> Resources:
        """The most that a sandbox can take of the host; the runtime and the keeper are in its group, so they are paid from its limits."""
        group = self._runtime.group_limits(limits)
        image = disks.image_bytes(limits.disk_bytes, self._runtime.bytes_per_inode)
        return Resources(memory_bytes=group.memory_bytes, disk_bytes=image + _FOLDER_BYTES, pids=group.pids)

    async def prepare(self, shape: Shape) -> Blank:
        """Make a blank sandbox: everything but the runtime's own processes. About 15 ms.

        Raises:
            HostError: The host lacks something; the hint gives the fix.
        """
        if not (shape.root.path / "").is_dir():
            raise InternalError(f"The root file system {shape.root.path} does not exist.")
        program = await run_blocking(self.program)
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
        instance = OciInstance(holding, record, started, self._runtime)
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
        failures = [failure for failure in await asyncio.gather(*map(_give_back, holdings)) if failure is not None]
        await run_blocking(self._forget_probes)
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

    def _group(self, ref: str) -> Cgroup:
        return Cgroup(self._detected(), node_group(self._settings.node) / ref)

    def _detected(self) -> Layout:
        if self._layout is None:
            self._layout = detect_layout()
        return self._layout

    def _hold(self, ref: str) -> Holding:
        holding = Holding(Folder(self._sandboxes / ref), self._group(ref), self._forget)
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


class OciBlank:
    """A prepared sandbox, nothing running in it; made by the driver."""

    __slots__ = ("_booted", "_first_id", "_holding", "_program", "_runtime", "_shape")

    def __init__(self, holding: Holding, shape: Shape, runtime: Runtime, program: Program, first_id: int | None) -> None:
        self._holding = holding
        self._shape = shape
        self._runtime = runtime
        self._program = program
        self._first_id = first_id
        self._booted = False

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest; returns once the runtime says that it runs. Once only.

        Raises:
            SandboxEndedError: It was destroyed meanwhile.
            HostError: The runtime could not start it; the message has its words.
        """
        holding, stage, record = self._holding, self._holding.stage, self._holding.record
        if self._booted or stage is None or record is None:
            raise ConflictError("This sandbox was started already.", code=ErrorCode.CONFLICT)
        if holding.is_doomed():
            raise _destroyed(holding.ref)
        self._booted = True
        try:
            record = replace(record, step=Step.BOOT)
            await run_blocking(self._write_bundle, spec, record)
            started = await stage.start(
                Order(
                    argv=self._runtime.run_argv(self._program, holding.ref, self._shape.limits.disk_bytes),
                    env={},
                    folder=VIEW_FOLDER,
                    stdin=f"{VIEW_FOLDER}/in",
                    stdout=f"{VIEW_FOLDER}/out",
                    pid_file=f"{VIEW_FOLDER}/pid",
                )
            )
        except BaseException as error:
            was_destroyed = holding.is_doomed()
            words = await run_blocking(_runtime_words, holding.folder) if isinstance(error, StageError) else ""
            await _give_back(holding)
            if was_destroyed and isinstance(error, StageError | OSError):
                raise _destroyed(holding.ref) from None
            if isinstance(error, StageError | OSError):
                raise HostError(
                    f"{self._program.name} could not start the sandbox: {words or error}",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="`sandlot doctor` says what is missing.",
                ) from error
            raise
        if holding.is_doomed():
            await holding.release()
            raise _destroyed(holding.ref)
        return OciInstance(holding, record, started, self._runtime)

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:  # noqa: ARG002 - the port's
        """Not yet.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(f"A snapshot cannot be restored: {self._runtime.absent[Ability.SNAPSHOT]}.", code=ErrorCode.UNSUPPORTED)

    async def destroy(self) -> None:
        """Give everything back, also while or after it boots. Idempotent."""
        await self._holding.release()

    def _write_bundle(self, spec: SandboxSpec, record: Record) -> None:
        self._holding.intend(record)
        config = self._runtime.config(self._shape, spec, self._first_id)
        self._holding.folder.config.write_text(json.dumps(config), encoding="utf-8")


def gvisor(settings: DriverSettings) -> OciDriver:
    """The ``gvisor`` driver: runsc, a kernel in user space between the code and the host."""
    return OciDriver("gvisor", settings, Runsc())


def container(settings: DriverSettings) -> OciDriver:
    """The ``container`` driver: crun, on the host's own kernel."""
    return OciDriver("container", settings, Crun())


async def _give_back(holding: Holding) -> Exception | None:
    """Give everything back, for a holding that nobody will ask about again; what went wrong."""
    try:
        await holding.release()
    except Exception as failure:  # noqa: BLE001 - the next sweep tries again
        holding.abandon()
        return failure
    return None


def _runtime_words(folder: Folder) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        last = folder.runtime_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1]
        return str(json.loads(last)["msg"])
    return ""


def _is_empty(folder: Path) -> bool:
    if folder.is_symlink():  # an image may say so; it must not lead a mount astray
        return False
    try:
        return next(folder.iterdir(), None) is None
    except OSError:
        return False


def _stamp(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _not_alive(ref: str) -> NotFoundError:
    return NotFoundError(f"No live sandbox {ref}.", code=ErrorCode.SANDBOX_NOT_FOUND, fields={"ref": ref})


def _destroyed(ref: str) -> SandboxEndedError:
    return SandboxEndedError("The sandbox was destroyed while it started.", code=ErrorCode.SANDBOX_ENDED, fields={"ref": ref, "reason": "killed"})
