"""A sandbox and its volumes: which are mounted for it on the host, and what its guest makes of them.

Laws:
- They are attached before anybody hears of the sandbox. Where a runtime cannot put them into their places, the guest does, as root inside.
- A snapshot holds none of them. What goes on from one's memory may have their places still: those are taken away first.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from sandlot.core.content import programs
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes.volume import slots
from sandlot.core.volumes.volumes import VolumeManager
from sandlot.model.specs import User, VolumeMount
from sandlot.model.states import State

PROGRAM = "attaching"


def hold(volumes: VolumeManager | None, sandbox: Sandbox) -> None:
    """An earlier service left a sandbox that may live: what it has stays mounted."""
    if volumes is not None and sandbox.state is not State.HIBERNATED:
        volumes.hold(sandbox.id, sandbox.spec.volumes)


def let_go(volumes: VolumeManager | None, sandbox: Sandbox) -> None:
    """Every process of a sandbox is gone."""
    if volumes is not None and sandbox.spec.volumes:
        volumes.release(sandbox.id)


def shown(gone: Sequence[VolumeMount], there: Sequence[VolumeMount]) -> Callable[[Sandbox], Coroutine[Any, Any, None]] | None:
    """What is done in a sandbox that answers, so that its volumes are in their places; None where they are.

    Args:
        gone: What the memory that it goes on from had.
        there: What it has.
    """
    if not gone and not there:
        return None

    async def show(sandbox: Sandbox) -> None:
        hub = None if sandbox.instance is None else sandbox.instance.hub
        if hub is None:
            return
        places = [[f"{hub}/{slot}", mount.path, mount.read_only] for slot, mount in slots(there)]
        await ask(sandbox, gone=[mount.path for mount in gone], there=places)

    return show


async def ask(sandbox: Sandbox, **request: object) -> Mapping[str, Any]:
    """Have the guest put volumes into their places, or take them away: see the program.

    Raises:
        SandlotError: It could not; says why.
    """
    helper = await programs.start(sandbox, PROGRAM, {"gone": [], "there": [], **request}, user=User.ROOT)
    try:
        return await helper.result()
    finally:
        helper.close()
