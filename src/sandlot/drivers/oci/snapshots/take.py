"""Steps of a snapshot of a live sandbox.

=======  ==============================================================================================================================
begin    Create an empty folder for the snapshot, in the sandbox's own folder.
thaw     If the sandbox is paused, create a marker file and thaw the sandbox. If the service is killed now, the next service finds the
         marker file and freezes the sandbox again.
save     The runtime pauses every task, writes the files of the snapshot, and lets the tasks continue.
freeze   Freeze the sandbox if it was paused before, or is about to end.
finish   Check the length of the memory, write the manifest, sync all files if the snapshot must be durable, and rename the folder.
=======  ==============================================================================================================================

If a step fails, the sandbox is as before, even if it was about to end, because the caller ends it only after all steps. So a service that is killed
at any moment leaves a live sandbox, a complete snapshot, or both. A paused sandbox runs for some milliseconds before the runtime pauses its tasks,
and again before it is frozen. In this time only programs inside can change anything, because the service does not read messages of the guest.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from sandlot.drivers.oci.headroom import freeze
from sandlot.drivers.oci.host_resources import SandboxHostResources
from sandlot.drivers.oci.record import Record
from sandlot.drivers.oci.runtime import Engine, EngineError, RunningOciRuntime
from sandlot.drivers.oci.snapshots import image_files
from sandlot.drivers.oci.snapshots.manifest import Manifest
from sandlot.host.blocking import run_blocking, run_in_own_thread

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Request for a snapshot.

    Args:
        into: Path of the snapshot's folder, which must not exist yet.
        keep_running: If True, the sandbox continues after the snapshot. If False, the sandbox is frozen, because the caller will end it.
        durable: True if the snapshot must survive a loss of power.
        headroom_bytes: Bytes of memory above the limit of the sandbox that the runtime may use.
    """

    into: Path
    keep_running: bool
    durable: bool
    headroom_bytes: int


async def take_snapshot(resources: SandboxHostResources, running: RunningOciRuntime, engine: Engine, record: Record, request: SnapshotRequest) -> int:
    """Write a snapshot of a sandbox and return its size on disk, in bytes.

    Args:
        resources: Host resources of the sandbox.
        running: Running runtime of the sandbox.
        engine: Engine that sends commands to the runtime.
        record: Record of the sandbox.
        request: Folder and options of the snapshot.

    Raises:
        ConflictError: The folder of the snapshot exists already.
        EngineError: The runtime failed, or the sandbox has ended.
        OSError: The disk is full, or a file cannot be written.
    """
    image = resources.folder.image
    was_frozen = await run_blocking(_begin, resources, request.into)
    try:
        try:
            async with resources.headroom.raised(request.headroom_bytes):
                await engine.save(running, image)
        except BaseException as error:
            if was_frozen:
                await _freeze_again(resources)
            # On a full disk, runsc 20240729 may fail with a panic of its encoder that does not mention the disk.
            if isinstance(error, EngineError) and await run_blocking(image_files.is_disk_full, image):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        if was_frozen or not request.keep_running:
            await _freeze_again(resources)
        return await run_in_own_thread(_finish, resources, running, record, request)
    except BaseException:
        if not was_frozen:
            resources.cgroup.thaw()
        await run_blocking(image_files.discard, image)
        raise


async def _freeze_again(resources: SandboxHostResources) -> None:
    with contextlib.suppress(FileNotFoundError):  # the sandbox has ended meanwhile
        await freeze(resources.cgroup)
    resources.folder.refreeze.unlink(missing_ok=True)


def _begin(resources: SandboxHostResources, into: Path) -> bool:
    """Create the folder for the snapshot's files and, if the sandbox is paused, thaw the sandbox. Return whether the sandbox was paused."""
    image_files.check_free(into)
    image_files.begin(resources.folder.image)
    if not resources.cgroup.is_frozen():
        return False
    resources.folder.refreeze.touch(mode=0o600)
    resources.cgroup.thaw()
    return True


def _finish(resources: SandboxHostResources, running: RunningOciRuntime, record: Record, request: SnapshotRequest) -> int:
    image = resources.folder.image
    with resources.moving:
        if not image_files.check_memory(image):
            _log.info("%s %s: the length of a snapshot's memory is not checked", running.program.name, running.program.version)
        manifest = Manifest(
            driver=record.driver,
            runtime=running.program.name,
            runtime_sha256=running.program.sha256,
            runtime_version=running.program.version,
            root_digest=record.root_digest,
            limits=record.limits,
            files=image_files.sizes(image),
            root_kind=record.root_kind,
        )
        size = image_files.finish(image, manifest, request.into, durable=request.durable)
    # A restore that follows soon needs the page cache, so it is dropped only if it may keep the sandbox above its limit.
    if request.durable and resources.headroom.granted_bytes:
        image_files.drop_cache(request.into)
    return size
