"""How a snapshot is made of a sandbox that runs.

=======  ============================================================================================================================
begin    an empty folder in the sandbox's own
thaw     where it is paused: a mark is left, so that whoever adopts it freezes it again
save     the runtime stops every task, writes its images, and lets them go on
freeze   where it was paused, or is to end
finish   the manifest, the disk, the rename
=======  ============================================================================================================================

Where something fails the sandbox is as it was, also one that was to end: its end is the very last thing, so that a service that is
killed at any moment leaves a sandbox that lives, a snapshot that is whole, or both. One that was paused runs for the milliseconds
between being thawed and being stopped by its runtime, and again until it is frozen: what its own programs do in them is all that it
changes, since nobody reads its link meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandlot.drivers.oci.checkpoint import images
from sandlot.drivers.oci.checkpoint.manifest import Manifest
from sandlot.drivers.oci.holding import Holding
from sandlot.drivers.oci.record import Record
from sandlot.drivers.oci.runtime import Engine, EngineError, Live
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.threads import run_apart, run_blocking
from sandlot.model.specs import Limits


@dataclass(frozen=True, slots=True)
class Taking:
    """How a snapshot is to be taken.

    Args:
        record: What the sandbox was made from, and may use.
        group_limits: What its group is limited to for its limits.
        goes_on: Whether it goes on afterwards; otherwise it is frozen, for its end.
        durable: Whether the snapshot is to survive a loss of power.
    """

    record: Record
    group_limits: Callable[[Limits], GroupLimits]
    goes_on: bool
    durable: bool


async def take(holding: Holding, live: Live, engine: Engine, into: Path, how: Taking) -> int:
    """Write a snapshot of a sandbox; the bytes that it takes on the disk.

    Args:
        holding: The sandbox's.
        live: For the engine.
        engine: Its runtime's.
        into: Where it appears.
        how: What else there is to know.

    Raises:
        ConflictError: The name is taken.
        EngineError: The runtime could not, or the sandbox has ended.
        OSError: The disk is full, or worse.
    """
    image = holding.folder.image
    was_frozen = await run_blocking(_begin, holding, into)
    try:
        try:
            async with holding.headroom(how.group_limits):
                await engine.save(live, image)
        except BaseException as error:
            if was_frozen:
                await _freeze_again(holding)
            # runsc 20240729 may also tell a full disk by a panic of its encoder that does not name it.
            if isinstance(error, EngineError) and await run_blocking(images.is_disk_full, image):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            raise
        if was_frozen or not how.goes_on:
            await _freeze_again(holding)
        return await run_apart(_finish, holding, how, live, into)
    except BaseException:
        if not was_frozen:
            holding.cgroup.thaw()
        await run_blocking(images.discard, image)
        raise


async def _freeze_again(holding: Holding) -> None:
    with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
        await holding.freeze()
    holding.folder.refreeze.unlink(missing_ok=True)


def _begin(holding: Holding, into: Path) -> bool:
    """Whether it was paused; it is not any more."""
    images.check_free(into)
    images.begin(holding.folder.image)
    if not holding.cgroup.is_frozen():
        return False
    holding.folder.refreeze.touch(mode=0o600)
    holding.cgroup.thaw()
    return True


def _finish(holding: Holding, how: Taking, live: Live, into: Path) -> int:
    with holding.moving:
        return _move(holding.folder.image, how, live, into)


def _move(image: Path, how: Taking, live: Live, into: Path) -> int:
    manifest = Manifest(
        driver=how.record.driver,
        runtime=live.program.name,
        runtime_sha256=live.program.sha256,
        runtime_version=live.program.version,
        root_digest=how.record.root_digest,
        limits=how.record.limits,
        files=images.sizes(image),
    )
    return images.finish(image, manifest, into, durable=how.durable)
