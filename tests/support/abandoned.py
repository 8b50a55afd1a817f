"""A service that lets a sandbox rest, or takes one out of a pool, and ends itself by SIGKILL in the middle of it, at a step that a test names.

    python -m tests.support.abandoned DATA_DIR DEED STEP

As :mod:`tests.support.forsaken`, for what lasts and for what is made before anybody asks.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sandlot.core.lives import resting
from sandlot.core.lives.starts import Restored
from sandlot.core.pools.asleep import Making
from sandlot.core.pools.kinds import Sizes, Wish
from sandlot.core.pools.starts import Claim
from sandlot.core.pools.templates import Snapshots as Templates
from sandlot.core.records.register import Register
from sandlot.core.sandbox import Sandbox
from sandlot.drivers.oci.blank import OciBlank
from sandlot.drivers.oci.instance import OciInstance
from sandlot.images.store import DEFAULT_CACHE
from sandlot.link.client import Link
from sandlot.model.access import OPERATOR
from sandlot.server.compose import Service
from tests.support.forsaken import after, amid, say
from tests.support.saving import BASE, cell, fill, make, real_service
from tests.support.until import until

POOL = (Wish(BASE.template, Sizes(warm=1, max=1)),)
POOLED = type(BASE)(template=BASE.template, network="none")
"""A sandbox that the pool has: of default limits."""

STEPS: dict[str, Callable[[], None]] = {
    "intended": lambda: after(Register, "rests"),
    "at rest": lambda: after(Link, "quiesce"),
    "writing": lambda: amid(OciInstance, "snapshot"),
    "written": lambda: after(OciInstance, "snapshot"),
    "recorded": lambda: after(Register, "moved"),
    "given back": lambda: after(resting, "destroy"),
    "preparing": lambda: amid(Restored, "__call__"),
    "restoring": lambda: amid(OciBlank, "restore"),
    "restored": lambda: after(Restored, "__call__"),
    "recorded as woken": lambda: after(Register, "rests"),
    "thawed": lambda: after(OciInstance, "resume"),
    "claimed": lambda: after(Claim, "_become"),
    "told of": lambda: after(Register, "runs"),
    "frozen": lambda: after(OciInstance, "pause"),
    "rehearsed": lambda: after(Making, "rehearse"),
    "snapshot of the template": lambda: amid(OciInstance, "snapshot"),
    "snapshot to be proved": lambda: after(OciInstance, "snapshot"),
    "snapshot published": lambda: after(Templates, "_make"),
}
"""Where to die."""


def own_cache(folder: Path) -> Path:
    """A cache with the machine's images and no template snapshot."""
    cache = folder / "cache"
    if not cache.exists():
        cache.mkdir()
        for entry in DEFAULT_CACHE.iterdir():
            if entry.name not in {"snapshots", "tmp"}:
                (cache / entry.name).symlink_to(entry)
    return cache


async def stocked(service: Service) -> None:
    """Return once the pool has one that waits."""
    await until(lambda: any(told.pool.ready for told in service.sandboxes.pools.all(OPERATOR)))


async def hibernate(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    arm()
    await service.sandboxes.hibernate(box.id, OPERATOR)
    say(hibernated=True)


async def wake(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    await service.sandboxes.hibernate(box.id, OPERATOR)
    say(hibernated=True)
    arm()
    await service.sandboxes.resume(box.id, OPERATOR)
    say(woken=True)


LIVES: dict[str, Callable[[Service, Sandbox, Callable[[], None]], Coroutine[Any, Any, None]]] = {"hibernate": hibernate, "wake": wake}


async def resting_one(data_dir: Path, deed: str, step: str) -> None:
    async with real_service(data_dir, keep=True) as service:
        box = await make(service)
        state = await fill(box)
        say(box=box.id, ticker=state.ticker)
        await LIVES[deed](service, box, STEPS[step])
        await asyncio.Event().wait()


async def claim(data_dir: Path, step: str) -> None:
    async with real_service(data_dir, keep=True, pools=POOL) as service:
        await stocked(service)
        STEPS[step]()
        box = await make(service, POOLED)
        say(made=box.id)
        await cell(box, "used = True")
        await asyncio.Event().wait()


async def refill(data_dir: Path, step: str) -> None:
    STEPS[step]()
    cache = own_cache(data_dir) if step.startswith("snapshot") else DEFAULT_CACHE
    async with real_service(data_dir, keep=True, pools=POOL, cache_dir=cache):
        await asyncio.Event().wait()


async def main(data_dir: Path, deed: str, step: str) -> None:
    if deed in LIVES:
        await resting_one(data_dir, deed, step)
    elif deed == "claim":
        await claim(data_dir, step)
    else:
        await refill(data_dir, step)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
