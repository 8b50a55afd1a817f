"""A sandbox and its volumes: which are mounted for it on the host, and what its guest makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandlot.model.states import State

if TYPE_CHECKING:
    from sandlot.core.sandbox import Sandbox
    from sandlot.core.volumes.volumes import Volumes


def hold(volumes: Volumes | None, box: Sandbox) -> None:
    """An earlier service left a sandbox that may live: what it has stays mounted."""
    if volumes is not None and box.state is not State.HIBERNATED:
        volumes.hold(box.id, box.spec.volumes)


def let_go(volumes: Volumes | None, box: Sandbox) -> None:
    """Every process of a sandbox is gone."""
    if volumes is not None and box.spec.volumes:
        volumes.release(box.id)
