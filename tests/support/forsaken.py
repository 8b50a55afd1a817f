"""A service that does one thing and ends itself by SIGKILL in the middle of it, at a step that a test names.

    python -m tests.support.forsaken DATA_DIR DEED STEP

It makes a sandbox with state in it, says in JSON which one, and does the deed; what that gave is said as well, where it came so far.
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

from sandlot.core.admission import NewSandbox
from sandlot.core.births import Births
from sandlot.core.content import layers
from sandlot.core.lives.images import Images
from sandlot.core.lives.starts import Restored
from sandlot.core.records.register import Register
from sandlot.core.sandbox import Sandbox
from sandlot.core.sandboxes import Sandboxes
from sandlot.core.saved import writing
from sandlot.core.saved.forks import NewFork
from sandlot.core.saved.gate import Gate
from sandlot.drivers.oci.instance import OciInstance
from sandlot.model.access import OPERATOR
from sandlot.server.compose import Service
from sandlot.store.snapshots import Snapshots
from tests.support.saving import fill, make, real_service

MIDDLE_S = 0.03
"""Into something that takes 0.1 s and more."""

COUNT = 2
"""Children of a fork."""


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
    "intended": lambda: after(Snapshots, "save"),
    "writing": lambda: amid(OciInstance, "snapshot"),
    "written": lambda: after(writing, "image"),
    "recorded": lambda: after(Snapshots, "update"),
    "packing": lambda: amid(layers, "pack_layer"),
    "forgotten": lambda: after(Snapshots, "remove"),
    "conceived": lambda: after(Births, "conceive"),
    "restoring": lambda: amid(Restored, "__call__"),
    "one waits": lambda: amid(Gate, "pass_through"),
    "one is told of": lambda: after(Register, "runs"),
    "all are told of": lambda: after(Register, "runs", COUNT),
    "image removed": lambda: after(Images, "remove"),
    "one has ended": lambda: after(Sandboxes, "kill"),
    "never": lambda: None,
}
"""Where to die."""


async def take(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    arm()
    record = await service.core.snapshots.take(box.id, OPERATOR, name="kept")
    say(snapshot=record.id)


async def delete(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    record = await service.core.snapshots.take(box.id, OPERATOR, name="kept")
    say(snapshot=record.id)
    arm()
    await service.core.snapshots.delete("kept", OPERATOR)
    say(deleted=record.id)


async def create(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    record = await service.core.snapshots.take(box.id, OPERATOR, name="kept")
    say(snapshot=record.id)
    arm()
    made = await service.core.snapshots.create(NewSandbox(snapshot="kept"), OPERATOR)
    say(made=made.id)


async def fork(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    arm()
    made = await service.core.forks.fork(box.id, OPERATOR, NewFork(COUNT), key="k")
    say(children=[child.id for child in made])


async def promote(service: Service, box: Sandbox, arm: Callable[[], None]) -> None:
    made = await service.core.forks.fork(box.id, OPERATOR, NewFork(3))
    say(children=[child.id for child in made])
    arm()
    promoted = await service.core.forks.promote(made[0].id, OPERATOR)
    say(ended=list(promoted.ended))


DEEDS: dict[str, Callable[[Service, Sandbox, Callable[[], None]], Coroutine[Any, Any, None]]] = {
    each.__name__: each for each in (take, delete, create, fork, promote)
}


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


async def main(data_dir: Path, deed: str, step: str) -> None:
    async with real_service(data_dir, keep=True) as service:
        box = await make(service)
        state = await fill(box)
        say(box=box.id, ticker=state.ticker)
        await DEEDS[deed](service, box, STEPS[step])
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
