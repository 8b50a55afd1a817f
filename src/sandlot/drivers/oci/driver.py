"""The driver of one OCI runtime: probe, prepare, adopt and sweep.

Everything that these steps create on the host can be found by the ref of the sandbox, a random name. If the service is killed, the next service can
therefore adopt or release the sandbox. The *stage* is a process that sets up the sandbox and starts the runtime. The stage then becomes the *keeper*,
which waits for the end of the sandbox.

=========  ==========================================================================================================================
prepare    Create the record, folder, control group, pipes and disk image. Meanwhile, start the stage. The stage enters the control
           group and creates the mounts. The stage ends by itself if the service dies before ``boot``.
boot       Write the record and the OCI bundle. The stage starts the runtime, becomes the keeper and writes the file ``live``.
restore    Write the OCI bundle. The stage runs the runtime's ``create``, becomes the keeper and writes the file ``live``. The runtime
           restores the snapshot. Only then is the record written (``prepared.py``).
adopt      Check that the sandbox's process, which the file ``live`` names, still exists and is in the sandbox's control group.
sweep      Collect refs from the names of folders, control groups, backing files of loop devices, and owners of id ranges. Release every
           sandbox that is not to be kept.
=========  ==========================================================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.host_resources import SandboxHostResources, new_folder_prefix
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.network_cards import NetworkCards
from sandlot.drivers.oci.paths import SandboxFolder, is_ref, new_ref, node_group, runtimes_folder, sandboxes_folder, saved_images
from sandlot.drivers.oci.prepared import OciPreparedSandbox, unusable_error
from sandlot.drivers.oci.probe import Probe
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Program, Runtime, RuntimePlanInputs
from sandlot.drivers.oci.runtime_builds import RuntimeBuilds
from sandlot.drivers.oci.snapshots import image_files
from sandlot.drivers.oci.snapshots import manifest as manifests
from sandlot.drivers.registry import DriverSettings, driver_names
from sandlot.host import disk_images
from sandlot.host.blocking import run_blocking
from sandlot.host.cgroup_layout import Layout
from sandlot.host.cgroups import Cgroup, detect_layout, group_names
from sandlot.host.id_ranges import RANGES, IdRanges
from sandlot.host.launcher import Stage, StageError, read_started
from sandlot.host.process_identity import open_process
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InternalError, NotFoundError, UnsupportedError
from sandlot.model.ports import Capabilities, DriverCapability, HeadroomRange, Instance, PreparedSandbox, ProbeResult, Resources, VolumeView
from sandlot.model.specs import Limits, RootFs, RootKind, Shape

_MAX_TEMPLATES = 16
"""Number of disk sizes for which the content of an empty disk is kept in memory, about 0.2 MiB each."""
_FOLDER_BYTES = 1024 * 1024
"""Largest size of a sandbox's folder without its disk: bundle, state and logs."""


class OciDriver:
    """Driver of one OCI runtime.

    The driver's state does not depend on an event loop, because a probe uses the same driver from another loop.

    Args:
        name: Name of the driver.
        settings: Id of the node, state directory and source of random bytes.
        runtime: OCI runtime that runs the sandboxes.
    """

    def __init__(self, name: str, settings: DriverSettings, runtime: Runtime) -> None:
        self.name, self.volume_view = name, VolumeView.TREE
        self._settings = settings
        self._runtime = runtime
        self._sandboxes = sandboxes_folder(settings.data_dir)
        self._held: dict[str, SandboxHostResources] = {}
        """Ref -> resources of each sandbox that this driver holds, including the sandbox of a probe."""
        self._builds = RuntimeBuilds(runtime, runtimes_folder(settings.data_dir))
        self._layout: Layout | None = None
        self._disks: dict[int, disk_images.DiskTemplate] = {}
        self._cards = NetworkCards(runtime)
        self._probe = Probe(self, self._builds, runtime, self._cards, self._sandboxes)

    def probe(self) -> Capabilities:
        """Return the capabilities of this driver on this host (``probe.py``). The first call takes about a second."""
        return self._probe.capabilities()

    def fingerprint(self) -> str:
        """Return the name and the digest of the installed runtime, on which snapshots depend.

        Raises:
            HostError: The runtime is not installed.
        """
        program = self._builds.installed()
        return f"{program.name}:{program.sha256}"

    def max_resources(self, limits: Limits) -> Resources:
        """Return the maximum host resources that a sandbox can use, including those of its runtime and its keeper process."""
        group = self._runtime.group_limits(limits)
        image = disk_images.image_bytes(limits.disk_bytes, self._runtime.bytes_per_inode)
        return Resources(memory_bytes=group.memory_bytes, disk_bytes=image + _FOLDER_BYTES, pids=group.pids)

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Return whether a snapshot is complete and the runtime build that wrote it is available.

        Reads files. If this service has not verified the build yet, it also reads the runtime's whole program and may copy it (about 100 ms).
        """
        if reason := self._runtime.unsupported.get(DriverCapability.SNAPSHOT, ""):
            return ProbeResult(ok=False, reason=reason)
        manifest = manifests.read(snapshot)
        if manifest is None:
            return ProbeResult(ok=False, reason="its manifest is missing or cannot be read")
        if manifest.driver != self.name:
            return ProbeResult(ok=False, reason=f"it was written by the {manifest.driver} driver")
        reason = image_files.find_damage(snapshot, manifest) or self._builds.unusable_reason(manifest.runtime_sha256)
        return ProbeResult(ok=not reason, reason=reason)

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
        """Prepare a sandbox: create everything except the runtime's own processes. Takes about 15 ms.

        Args:
            shape: Properties of the sandbox that must be known before the sandbox has an owner.
            snapshot: Snapshot that will be restored. The sandbox then uses the runtime build that wrote the snapshot. None: the installed build.

        Raises:
            UnsupportedError: The root file system is an image, and the runtime starts sandboxes only from folders.
            ConflictError: ``snapshot_unusable``: the snapshot is not complete, or the build that wrote it is not available.
            HostError: The host does not meet a requirement; the hint gives the fix.
        """
        _check_root(shape.root, self._runtime, self.name)
        program = await run_blocking(self._builds.current if snapshot is None else partial(self._build_of, snapshot))
        has_card = (await run_blocking(self._cards.probe, program)).ok
        if not has_card:
            program = replace(program, copies_network=False)
        resources = self._hold(new_ref(self._settings.node, self._settings.ids))
        try:
            first_id = await self._prepare(resources, shape, program, has_card=has_card)
        except BaseException as error:
            await resources.release_in_background()
            is_full = isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}  # core reports a full disk of the node
            if isinstance(error, StageError | OSError) and not is_full:
                raise HostError(
                    f"The host could not prepare a sandbox: {error}.",
                    hint="Run `sandlot doctor` to see what the host lacks.",
                ) from error
            raise
        return OciPreparedSandbox(resources, shape, self._runtime, program, first_id, has_card=has_card)

    def _build_of(self, snapshot: Path) -> Program:
        """Return the program of the runtime build that wrote a snapshot."""
        result, manifest = self.restorable(snapshot), manifests.read(snapshot)
        if not result.ok or manifest is None:
            raise unusable_error(result.reason)
        return self._builds.get(manifest.runtime_sha256)

    async def _prepare(self, resources: SandboxHostResources, shape: Shape, program: Program, *, has_card: bool) -> int | None:
        """Create all resources of a prepared sandbox. Return the first user id of the sandbox's range, or None if the runtime needs no ranges."""
        folder = resources.folder
        record = Record(
            ref=folder.ref,
            step=Step.PREPARE,
            driver=self.name,
            runtime=str(program.path),
            runtime_sha256=program.sha256,
            root_digest=shape.root.digest,
            limits=shape.limits,
            root_kind=shape.root.kind,
        )
        await run_blocking(resources.create_folder, record)
        # The Python interpreter of the stage process starts while the other resources are created.
        spawning = asyncio.ensure_future(Stage.spawn(folder.ref, folder.stage_log))
        try:
            first_id = await run_blocking(self._create_resources, resources, shape, program)
        finally:
            resources.stage = await spawning
        inputs = RuntimePlanInputs(
            shape=shape,
            program=program,
            folder=folder,
            entry_files=resources.cgroup.entry_files,
            has_image=self._has_image(program, shape),
            has_tmp=shape.root.tree is not None and await run_blocking(_is_empty, shape.root.tree / "tmp"),
            first_id=first_id,
            boot_id=str(uuid.UUID(bytes=self._settings.ids(16), version=4)),
            has_card=has_card,
        )
        await resources.stage.carry_out(self._runtime.plan(inputs))
        return first_id

    def _create_resources(self, resources: SandboxHostResources, shape: Shape, program: Program) -> int | None:
        disk = self._disk_template(shape.limits.disk_bytes, resources.folder) if self._has_image(program, shape) else None
        resources.create_resources(shape.limits, disk, allocated=self._settings.allocates_disks)
        if not self._runtime.own_ids:
            return None
        # The range of ids is taken after the group was created, because a range counts as free if its sandbox has no group.
        layout, start = self._detected_layout(), int.from_bytes(self._settings.ids(2), "big") % RANGES
        return IdRanges().take(str(resources.cgroup.name), lambda name: Cgroup(layout, PurePosixPath(name)).exists(), start)

    def _has_image(self, program: Program, shape: Shape) -> bool:
        """Return whether the disk of a sandbox is an image file: always if disks are allocated, because a runtime's own file cannot be.

        The disk is also an image file if the root file system is an image: the limit in runsc's command line has no effect then.
        """
        return self._settings.allocates_disks or not program.limits_disk or shape.root.kind is RootKind.IMAGE

    def _disk_template(self, size_bytes: int, folder: SandboxFolder) -> disk_images.DiskTemplate:
        template = self._disks.get(size_bytes)
        if template is None:
            template = disk_images.make_template(size_bytes, folder.path, self._runtime.bytes_per_inode)
            if len(self._disks) >= _MAX_TEMPLATES:
                self._disks.clear()
            self._disks[size_bytes] = template
        return template

    async def restore_headroom(self, snapshot: Path, limits: Limits) -> HeadroomRange:
        """Return the headroom for a restore of a snapshot. A missing snapshot counts as an empty one."""
        state_bytes, memory_bytes = await run_blocking(image_files.restore_bytes, snapshot)
        return self._runtime.restore_headroom(state_bytes, memory_bytes, self._runtime.group_limits(limits).memory_bytes)

    async def adopt(self, ref: str) -> Instance:
        """Take over a live sandbox after a restart of the service.

        Raises:
            NotFoundError: No sandbox with this ref is alive, or its removal had begun.
            ConflictError: This driver already manages the sandbox.
        """
        if not is_ref(ref, self._settings.node):
            raise _not_alive_error(ref)
        folder = SandboxFolder(self._sandboxes / ref)
        record = await run_blocking(records.read, folder.record)
        if record is None or record.step is not Step.BOOT or record.driver != self.name:
            raise _not_alive_error(ref)
        try:
            started = read_started(await run_blocking(folder.live.read_text, encoding="ascii"))
        except (OSError, ValueError):
            raise _not_alive_error(ref) from None
        sandbox = open_process(started.sandbox)
        if sandbox is None:
            raise _not_alive_error(ref)
        os.close(sandbox)
        if ref in self._held:
            raise ConflictError(f"The service already manages sandbox {ref}.")
        resources = self._hold(ref)
        if started.sandbox.pid not in resources.cgroup.pids():
            self._forget(ref)
            raise _not_alive_error(ref)
        resources.record = record
        instance = OciInstance(resources, record, started, self._runtime, partial(self._builds.get, record.runtime_sha256))
        try:
            await instance.recover()
        except BaseException:
            instance.abandon()
            self._forget(ref)
            raise
        return instance

    async def sweep(self, keep: Collection[str]) -> int:
        """Remove all sandboxes of this node and their remains, except sandboxes that this driver holds and those in ``keep``.

        Return the number of sandboxes that were removed.

        Args:
            keep: Refs of further sandboxes that must not be removed.

        Raises:
            InternalError: A sandbox could not be removed. All others were removed.
        """
        strays = await run_blocking(self._refs_on_host)
        strays -= set(keep) | set(self._held)
        strays -= await run_blocking(self._of_other_drivers, strays)
        failures = [failure for failure in await asyncio.gather(*(self._hold(ref).try_release() for ref in strays)) if failure is not None]
        await run_blocking(self._probe.clean)
        await run_blocking(self._remove_leftovers)
        # Remove the node's control group if a killed service left it empty. The kernel refuses this while the group contains groups of sandboxes.
        await run_blocking(Cgroup(self._detected_layout(), node_group(self._settings.node)).remove)
        if failures:
            raise failures[0]
        return len(strays)

    def _refs_on_host(self) -> set[str]:
        node = self._settings.node
        names = group_names(self._detected_layout(), node_group(node))
        with contextlib.suppress(FileNotFoundError):
            names.update(os.listdir(self._sandboxes))  # noqa: PTH208 - names, not paths
        names.update(file.parent.name for file in disk_images.loops_below(self._sandboxes).values())
        names.update(PurePosixPath(owner).name for owner in IdRanges().owners())
        return {name for name in names if is_ref(name, node)}

    def _of_other_drivers(self, refs: Collection[str]) -> set[str]:
        """Return the refs whose records name another driver, because the other driver manages or sweeps these sandboxes itself."""
        others = set(driver_names()) - {self.name}
        files = {ref: SandboxFolder(self._sandboxes / ref).record for ref in refs}
        return {ref for ref, file in files.items() if (record := records.read(file)) is not None and record.driver in others}

    def _remove_leftovers(self) -> None:
        """Remove incomplete folders of sandboxes, and copies of runtime builds that no sandbox and no snapshot needs."""
        prefix = new_folder_prefix(self.name)
        with contextlib.suppress(FileNotFoundError):
            for draft in self._sandboxes.glob(f"{prefix}*"):
                if draft.name.removeprefix(prefix) not in self._held:
                    shutil.rmtree(draft, ignore_errors=True)
        if DriverCapability.SNAPSHOT not in self._runtime.unsupported:
            running = (records.read(file) for file in self._sandboxes.glob("*/record.json"))
            saved = (manifests.read(image) for image in saved_images(self._settings.data_dir))
            self._builds.prune({each.runtime_sha256 for each in (*running, *saved) if each is not None})

    def _detected_layout(self) -> Layout:
        if self._layout is None:
            self._layout = detect_layout()
        return self._layout

    def _hold(self, ref: str) -> SandboxHostResources:
        cgroup = Cgroup(self._detected_layout(), node_group(self._settings.node) / ref)
        resources = SandboxHostResources(SandboxFolder(self._sandboxes / ref), cgroup, self._runtime, self._forget)
        self._held[ref] = resources
        return resources

    def _forget(self, ref: str) -> None:
        self._held.pop(ref, None)


def gvisor(settings: DriverSettings) -> OciDriver:
    """Create the ``gvisor`` driver, which runs sandboxes with runsc, a kernel in user space between the tenant's code and the host."""
    return OciDriver("gvisor", settings, Runsc())


def container(settings: DriverSettings) -> OciDriver:
    """Create the ``container`` driver, which runs sandboxes with crun, on the host's own kernel."""
    return OciDriver("container", settings, Crun())


def _check_root(root: RootFs, runtime: Runtime, driver: str) -> None:
    """Check that a root file system exists and that a runtime can start sandboxes from it."""
    if root.kind is RootKind.IMAGE and (reason := runtime.unsupported.get(DriverCapability.BOOT_IMAGE, "")):
        raise UnsupportedError(
            f"The {driver} driver cannot start a sandbox from an image: {reason}.",
            hint="Use isolation `gvisor` for this template.",
            fields={"field": "isolation"},
        )
    if not (root.require_tree().is_dir() if root.image is None else root.image.is_file()):
        raise InternalError(f"The root file system {root.image or root.tree} does not exist.")


def _is_empty(folder: Path) -> bool:
    if folder.is_symlink():  # an image may contain a symbolic link, which a mount must not follow
        return False
    try:
        return next(folder.iterdir(), None) is None
    except OSError:
        return False


def _not_alive_error(ref: str) -> NotFoundError:
    return NotFoundError(f"Sandbox {ref} is not alive.", code=ErrorCode.SANDBOX_NOT_FOUND, fields={"ref": ref})
