"""A service that does one thing and ends itself by SIGKILL in the middle of it, at a step that a test names.

    python -m tests.support.forsaken DATA_DIR DEED STEP

It makes a sandbox with state in it, says in JSON which one, and does the deed; what that gave is said as well, where it came so far. The deeds of
``POOL_DEEDS`` have a pool instead of a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from sandlot.core.admission_controller import AdmissionController
from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.start import MemoryImageStart, WarmStart
from sandlot.core.manager import SandboxManager
from sandlot.core.pools.models import PoolSetting
from sandlot.core.pools.snapshot_maker import SnapshotMaker as Templates
from sandlot.core.pools.warm import WarmSandboxFactory
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.resources.allocation import Allocation
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots import writer
from sandlot.core.snapshots.fork_batch import ForkBatch
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.prepared import OciPreparedSandbox
from sandlot.link.client import Link
from sandlot.model.access import OPERATOR
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.pools import PoolSizes
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams
from sandlot.server.composition import RunningService
from sandlot.store.snapshots import SqlSnapshotRepository
from tests.support.cache import CACHE_DIR
from tests.support.pools import live_pools
from tests.support.saving import cell, fill, make, real_service
from tests.support.until import until

MIDDLE_S = 0.03
"""Into something that takes 0.1 s and more."""

COUNT = 2
"""Children of a fork."""

POOL = (PoolSetting("base", PoolSizes(warm=1, max=1)),)
POOLED = CreateSandboxParams(template="base", network=NetworkPolicy(NetworkMode.NONE))
"""A sandbox that the pool has: of default limits."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(owner: Any, name: str, number: int = 1) -> None:  # noqa: ANN401 - a class or a module
    """Die once a coroutine function has returned that often."""
    work: Callable[..., Awaitable[Any]] = getattr(owner, name)
    done = 0

    async def last(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        nonlocal done
        result = await work(*args, **named)
        done += 1
        if done == number:
            die()
        return result

    setattr(owner, name, last)


def amid(owner: Any, name: str) -> None:  # noqa: ANN401
    """Die a moment after a coroutine function was called."""
    work: Callable[..., Awaitable[Any]] = getattr(owner, name)

    async def last(*args: Any, **named: Any) -> Any:  # noqa: ANN401
        asyncio.get_running_loop().call_later(MIDDLE_S, die)
        return await work(*args, **named)

    setattr(owner, name, last)


STEPS: dict[str, Callable[[], None]] = {
    "intended": lambda: after(SqlSnapshotRepository, "save"),
    "writing": lambda: amid(OciInstance, "snapshot"),
    "written": lambda: after(writer, "write_image"),
    "recorded": lambda: after(SqlSnapshotRepository, "update"),
    "packing": lambda: amid(overlay, "pack_overlay"),
    "forgotten": lambda: after(SqlSnapshotRepository, "remove"),
    "conceived": lambda: after(AdmissionController, "admit"),
    "restoring": lambda: amid(MemoryImageStart, "start"),
    "one waits": lambda: amid(ForkBatch, "wait_all_ready"),
    "one is told of": lambda: after(SandboxRecorder, "save_created"),
    "all are told of": lambda: after(SandboxRecorder, "save_created", COUNT),
    "image removed": lambda: after(MemoryImages, "remove"),
    "one has ended": lambda: after(SandboxManager, "kill"),
    "rest intended": lambda: after(SandboxRecorder, "save"),
    "at rest": lambda: after(Link, "quiesce"),
    "rest written": lambda: after(OciInstance, "snapshot"),
    "rest recorded": lambda: after(SandboxRecorder, "save_eventually"),
    "given back": lambda: after(Allocation, "_destroy"),
    "restoring memory": lambda: amid(OciPreparedSandbox, "restore"),
    "restored": lambda: after(MemoryImageStart, "start"),
    "recorded as woken": lambda: after(SandboxRecorder, "save", 2),  # the first one is the intent of the start
    "thawed": lambda: after(OciInstance, "resume"),
    "claimed": lambda: after(WarmStart, "_wake"),
    "frozen": lambda: after(OciInstance, "pause"),
    "rehearsed": lambda: after(WarmSandboxFactory, "rehearse"),
    "snapshot of the template": lambda: amid(OciInstance, "snapshot"),
    "snapshot to be proved": lambda: after(OciInstance, "snapshot"),
    "snapshot published": lambda: after(Templates, "_make"),
}
"""Where to die."""


async def take(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    arm()
    record = await service.node.snapshots.create(OPERATOR, sandbox.id, name="kept")
    say(snapshot=record.id)


async def delete(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    record = await service.node.snapshots.create(OPERATOR, sandbox.id, name="kept")
    say(snapshot=record.id)
    arm()
    await service.node.snapshots.delete(OPERATOR, "kept")
    say(deleted=record.id)


async def create(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    record = await service.node.snapshots.create(OPERATOR, sandbox.id, name="kept")
    say(snapshot=record.id)
    arm()
    made = await make(service, CreateSandboxParams(snapshot="kept"))
    say(made=made.id)


async def fork(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    arm()
    made = await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams(COUNT), key="k")
    say(children=[child.id for child in made])


async def promote(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    made = await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams(3))
    say(children=[child.id for child in made])
    arm()
    promoted = await service.internals.forks.promote(OPERATOR, made[0].id)
    say(ended=list(promoted.ended))


def own_cache(folder: Path) -> Path:
    """A cache with the machine's images and no template snapshot."""
    cache = folder / "cache"
    if not cache.exists():
        cache.mkdir()
        for entry in CACHE_DIR.iterdir():
            if entry.name not in {"snapshots", "tmp"}:
                (cache / entry.name).symlink_to(entry)
    return cache


async def stocked(service: RunningService) -> None:
    """Return once the pool has one that waits."""
    await until(lambda: any(pool.ready for pool in live_pools(service.node).values()))


async def hibernate(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    arm()
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    say(hibernated=True)


async def wake(service: RunningService, sandbox: Sandbox, arm: Callable[[], None]) -> None:
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    say(hibernated=True)
    arm()
    await service.internals.manager.resume(OPERATOR, sandbox.id)
    say(woken=True)


DEEDS: dict[str, Callable[[RunningService, Sandbox, Callable[[], None]], Coroutine[Any, Any, None]]] = {
    each.__name__: each for each in (take, delete, create, fork, promote, hibernate, wake)
}


async def claim(data_dir: Path, step: str) -> None:
    async with real_service(data_dir, keep=True, pools=POOL) as service:
        await stocked(service)
        STEPS[step]()
        sandbox = await make(service, POOLED)
        say(made=sandbox.id)
        await cell(service.node, sandbox, "used = True")
        await asyncio.Event().wait()


async def refill(data_dir: Path, step: str) -> None:
    STEPS[step]()
    cache = own_cache(data_dir) if step.startswith("snapshot") else CACHE_DIR
    async with real_service(data_dir, keep=True, pools=POOL, cache_dir=cache):
        await asyncio.Event().wait()


POOL_DEEDS: dict[str, Callable[[Path, str], Coroutine[Any, Any, None]]] = {each.__name__: each for each in (claim, refill)}


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def main(data_dir: Path, deed: str, step: str) -> None:
    if deed in POOL_DEEDS:
        await POOL_DEEDS[deed](data_dir, step)
    async with real_service(data_dir, keep=True) as service:
        sandbox = await make(service)
        state = await fill(service.node, sandbox)
        say(box=sandbox.id, ticker=state.ticker)
        await DEEDS[deed](service, sandbox, STEPS[step])
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
