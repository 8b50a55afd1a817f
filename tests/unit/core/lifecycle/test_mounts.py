"""Detaching volumes from a running sandbox. ``tests/service/test_mounts.py`` uses real filesystems and guests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.lifecycle import mounts
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import VolumeMount
from sandlot.model.volumes import MIN_SIZE_BYTES
from tests.support.node import MemoryNode, NodeState, open_node
from tests.unit.core.volumes.test_manager import Disks


class GuestPlaces:
    """The guest's part: it puts volumes into their places and lets go of them.

    Attributes:
        requests: All requests, oldest first.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def ask(self, _sandbox: Sandbox, **request: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        self.requests.append(request)
        return {}

    @property
    def rounds(self) -> list[int]:
        """Number of rounds in each request that made the guest's kernel drop unused folders."""
        return [request["unbind_if_unused"][0][-1] for request in self.requests if "unbind_if_unused" in request]


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> GuestPlaces:
    guest = GuestPlaces()
    monkeypatch.setattr(mounts, "ask", guest.ask)
    return guest


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[MemoryNode]:
    async with open_node(NodeState(tmp_path)) as node:
        node.use_disks(Disks())
        yield node


@pytest.fixture
async def sandbox(node: MemoryNode, guest: GuestPlaces) -> Sandbox:
    """A sandbox with one volume."""
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
    await node.services.volumes.create(OPERATOR, name="data", size_bytes=MIN_SIZE_BYTES)
    await node.internals.mounts.attach(OPERATOR, sandbox.id, VolumeMount("data", "/data"))
    guest.requests.clear()
    return sandbox


def refuse(node: MemoryNode, times: int) -> None:
    """Let the host's kernel refuse the next detaches."""
    node.driver.fail_next("configure", *[ConflictError("It is busy.", code=ErrorCode.CONFLICT)] * times)


async def test_detach_asks_the_guest_in_three_rounds(node: MemoryNode, guest: GuestPlaces, sandbox: Sandbox) -> None:
    refuse(node, 3)

    await node.internals.mounts.detach(OPERATOR, sandbox.id, "/data")

    assert guest.rounds == [4, 8, 24]
    assert sandbox.spec.volumes == ()
    assert node.instance(sandbox).volumes == {}


async def test_failed_detach_attaches_the_volume_again(node: MemoryNode, guest: GuestPlaces, sandbox: Sandbox) -> None:
    refuse(node, 4)

    with pytest.raises(ConflictError, match="in use"):
        await node.internals.mounts.detach(OPERATOR, sandbox.id, "/data")

    assert [(mount.path, mount.changing) for mount in sandbox.spec.volumes] == [("/data", False)]
    assert [place[1] for place in guest.requests[-1]["bind"]] == ["/data"]
