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
from sandlot.core.volumes.volumes import Volumes
from sandlot.model.specs import User, VolumeMount
from sandlot.model.states import State

PROGRAM = "attaching"


def hold(volumes: Volumes | None, box: Sandbox) -> None:
    """An earlier service left a sandbox that may live: what it has stays mounted."""
    if volumes is not None and box.state is not State.HIBERNATED:
        volumes.hold(box.id, box.spec.volumes)


def let_go(volumes: Volumes | None, box: Sandbox) -> None:
    """Every process of a sandbox is gone."""
    if volumes is not None and box.spec.volumes:
        volumes.release(box.id)


def shown(gone: Sequence[VolumeMount], there: Sequence[VolumeMount]) -> Callable[[Sandbox], Coroutine[Any, Any, None]] | None:
    """What is done in a sandbox that answers, so that its volumes are in their places; None where they are.

    Args:
        gone: What the memory that it goes on from had.
        there: What it has.
    """
    if not gone and not there:
        return None

    async def show(box: Sandbox) -> None:
        hub = None if box.instance is None else box.instance.hub
        if hub is None:
            return
        places = [[f"{hub}/{slot}", mount.path, mount.read_only] for slot, mount in slots(there)]
        await ask(box, gone=[mount.path for mount in gone], there=places)

    return show


async def ask(box: Sandbox, **request: object) -> Mapping[str, Any]:
    """Have the guest put volumes into their places, or take them away: see the program.

    Raises:
        SandlotError: It could not; says why.
    """
    program = await programs.start(box, PROGRAM, {"gone": [], "there": [], **request}, user=User.ROOT)
    try:
        return await program.result()
    finally:
        program.close()
