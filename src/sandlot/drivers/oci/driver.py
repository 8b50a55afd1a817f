"""The driver of one OCI runtime: blanks are prepared, booted, adopted and swept.

What happens when, and why it is safe to be killed in between:

=========  ==========================================================================================================
prepare    record, folder, control group, pipes, disk image; meanwhile the stage starts. Then the stage enters the
           group and makes its mounts. It ends by itself when the service dies before ``boot``.
boot       record, OCI bundle; the stage starts the runtime, becomes the keeper and writes ``live``.
adopt      ``live`` names processes that are the same ones still, in the group of that name.
sweep      names of folders, groups and loop devices' files, less those to keep: each is given back like any other.
=========  ==========================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

from sandlot.drivers.oci import probing
from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.config import oci_config
from sandlot.drivers.oci.holding import Holding
from sandlot.drivers.oci.instance import LATER, OciInstance
from sandlot.drivers.oci.places import VIEW_FOLDER, Folder, is_ref, new_ref, node_group, sandboxes_folder
from sandlot.drivers.oci.plan import group_limits, stage_plan
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Runtime, find_runsc
from sandlot.drivers.registry import DriverSettings
from sandlot.host import disks
from sandlot.host.cgroups import Cgroup, detect_layout, group_names
from sandlot.host.hierarchies import Layout
from sandlot.host.launch import Order, Stage, StageError, read_started
from sandlot.host.processes import open_process
from sandlot.host.threads import run_blocking
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InternalError, NotFoundError, SandboxEndedError, UnsupportedError
from sandlot.model.ports import Ability, Blank, Capabilities, Instance
from sandlot.model.specs import SandboxSpec, Shape

_TEMPLATES_KEPT = 16
"""Empty disks of so many sizes are remembered, about 0.2 MiB each."""


class OciDriver:
    """Isolation by one OCI runtime.

    Args:
        name: What people choose it by.
        settings: Node and state directory.
        find_runtime: Finds the runtime's program; called again only when that changed.
    """

    def __init__(self, name: str, settings: DriverSettings, find_runtime: Callable[[], Runtime]) -> None:
        self.name = name
        self._settings = settings
        self._find_runtime = find_runtime
        self._sandboxes = sandboxes_folder(settings.data_dir)
        self._holdings: dict[str, Holding] = {}
        self._runtime: tuple[Runtime, tuple[int, ...]] | None = None
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
                fresh = OciDriver(self.name, self._settings, self._find_runtime)
                fresh._holdings = self._holdings
                self._probed = probing.probe(self.name, self.runtime, fresh, self._settings.data_dir)
            return self._probed

    def fingerprint(self) -> str:
        """Everything that its snapshots depend on: the runtime's content.

        Raises:
            HostError: There is no runtime.
        """
        runtime = self.runtime()
        return f"{runtime.name}:{runtime.sha256}"

    def runtime(self) -> Runtime:
        """The runtime in use. Blocks for some ten milliseconds when its program is new, else for a stat.

        Raises:
            HostError: It is not installed, or too old.
        """
        if self._runtime is not None:
            known, seen = self._runtime
            with contextlib.suppress(FileNotFoundError):
                if _stamp(known.path) == seen:
                    return known
        found = self._find_runtime()
        self._runtime = found, _stamp(found.path)
        return found

    async def prepare(self, shape: Shape) -> Blank:
        """Make a blank sandbox: everything but the runtime's own processes. About 15 ms.

        Raises:
            HostError: The host lacks something; the hint gives the fix.
        """
        if not (shape.root.path / "").is_dir():
            raise InternalError(f"The root file system {shape.root.path} does not exist.")
        runtime = await run_blocking(self.runtime)
        holding = self._hold(new_ref(self._settings.node, self._settings.ids))
        try:
            await self._prepare(holding, shape, runtime)
        except BaseException as error:
            await _give_back(holding)
            if isinstance(error, StageError | OSError):
                raise HostError(
                    f"The host refused to prepare a sandbox: {error}.",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="`sandlot doctor` says what is missing.",
                ) from error
            raise
        return OciBlank(holding, shape, runtime)

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
        return OciInstance(holding, record, started)

    async def sweep(self, keep: Collection[str]) -> int:
        """Remove everything of this node that is neither kept nor held by this very driver; how many sandboxes that were.

        Raises:
            InternalError: Something could not be removed; all else was.
        """
        strays = await run_blocking(self._refs_on_host)
        strays -= set(keep) | set(self._holdings)
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
                probing.clean(self._settings.data_dir)
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

    async def _prepare(self, holding: Holding, shape: Shape, runtime: Runtime) -> None:
        folder = holding.folder
        record = Record(
            ref=folder.ref,
            step=Step.PREPARE,
            driver=self.name,
            runtime=str(runtime.path),
            runtime_sha256=runtime.sha256,
            root_digest=shape.root.digest,
            memory_bytes=shape.limits.memory_bytes,
            disk_bytes=shape.limits.disk_bytes,
        )
        await run_blocking(holding.make_folder, record)
        # The interpreter starts while the rest is made.
        spawning = asyncio.ensure_future(Stage.spawn(folder.ref, folder.stage_log))
        try:
            await run_blocking(self._furnish, holding, shape, runtime)
        finally:
            holding.stage = await spawning
        has_tmp = await run_blocking(_is_empty, shape.root.path / "tmp")
        plan = stage_plan(shape, folder, holding.cgroup.doors, has_image=not runtime.limits_disk, has_tmp=has_tmp)
        await holding.stage.carry_out(plan)

    def _furnish(self, holding: Holding, shape: Shape, runtime: Runtime) -> None:
        template = None
        if not runtime.limits_disk:
            size = shape.limits.disk_bytes
            template = self._disks.get(size)
            if template is None:
                template = disks.make_template(size, holding.folder.path)
                if len(self._disks) >= _TEMPLATES_KEPT:
                    self._disks.clear()
                self._disks[size] = template
        holding.furnish(group_limits(shape.limits), template)

    def _refs_on_host(self) -> set[str]:
        node = self._settings.node
        names = group_names(self._detected(), node_group(node))
        with contextlib.suppress(FileNotFoundError):
            names.update(os.listdir(self._sandboxes))  # noqa: PTH208 - names, not paths
        names.update(file.parent.name for file in disks.loops_below(self._sandboxes).values())
        return {name for name in names if is_ref(name, node)}


class OciBlank:
    """A prepared sandbox, nothing running in it; made by the driver."""

    __slots__ = ("_booted", "_holding", "_runtime", "_shape")

    def __init__(self, holding: Holding, shape: Shape, runtime: Runtime) -> None:
        self._holding = holding
        self._shape = shape
        self._runtime = runtime
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
                    argv=self._runtime.run_argv(holding.ref, self._shape.limits.disk_bytes),
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
                    f"{self._runtime.name} could not start the sandbox: {words or error}",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="`sandlot doctor` says what is missing.",
                ) from error
            raise
        if holding.is_doomed():
            await holding.release()
            raise _destroyed(holding.ref)
        return OciInstance(holding, record, started)

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:  # noqa: ARG002 - the port's
        """Not yet.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(f"A snapshot cannot be restored: {LATER}.", code=ErrorCode.UNSUPPORTED)

    async def destroy(self) -> None:
        """Give everything back, also while or after it boots. Idempotent."""
        await self._holding.release()

    def _write_bundle(self, spec: SandboxSpec, record: Record) -> None:
        self._holding.intend(record)
        config = oci_config(self._shape, spec, group_limits(self._shape.limits))
        self._holding.folder.config.write_text(json.dumps(config), encoding="utf-8")


def gvisor(settings: DriverSettings) -> OciDriver:
    """The ``gvisor`` driver: runsc, a kernel in user space between the code and the host."""
    return OciDriver("gvisor", settings, find_runsc)


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
