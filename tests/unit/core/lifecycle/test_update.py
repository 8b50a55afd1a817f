"""Changes of a deadline: the guest agrees first, and a change that fails leaves both sides as they were."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import HostError
from sandlot.model.sandboxes import CreateSandboxParams, UpdateSandboxParams
from tests.support.node import MemoryNode, settled

GRACE_S = 60.0
"""Seconds by which the guest's deadline is later than the service's."""


@pytest.fixture
async def sandbox(node: MemoryNode) -> Sandbox:
    """A sandbox with a timeout of 100 s."""
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", timeout_s=100))
    return sandbox


async def set_timeout(node: MemoryNode, sandbox: Sandbox, timeout_s: float) -> None:
    await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(timeout_s=timeout_s))


def deadlines(node: MemoryNode, sandbox: Sandbox) -> list[float | None]:
    """Return the deadlines that the guest was given after its start, oldest first."""
    return [request["deadline_s"] for request in node.guest(sandbox).requests("guest.deadline")]


async def test_guest_has_a_minute_more_than_the_service(node: MemoryNode, sandbox: Sandbox) -> None:
    assert [wake["deadline_s"] for wake in node.guest(sandbox).requests("guest.wake")] == [100 + GRACE_S]

    await set_timeout(node, sandbox, 200)

    assert deadlines(node, sandbox) == [200 + GRACE_S]


async def test_update_counts_a_new_deadline_once_the_guest_has_it(node: MemoryNode, sandbox: Sandbox) -> None:
    before = sandbox.deadline.expires_at
    hold = node.guest(sandbox).hold("guest.deadline")

    updating = asyncio.create_task(set_timeout(node, sandbox, 200))
    await hold.reached.wait()
    assert sandbox.deadline.expires_at == before

    hold.release()
    await updating
    assert sandbox.deadline.expires_at == node.clock.now() + timedelta(seconds=200)


async def test_labels_are_added_beside_the_metadata_of_the_client(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(labels={"sandlot.a": "1", "sandlot.b": "1"}))
    await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(metadata={"c": "1"}, labels={"sandlot.b": "2"}))
    assert sandbox.metadata == {"sandlot.a": "1", "sandlot.b": "2", "c": "1"}

    node.state.database.faults.fail_next("sandboxes.save", HostError("The disk is full."))
    with pytest.raises(HostError):
        await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(labels={"sandlot.a": "2"}))
    assert sandbox.metadata["sandlot.a"] == "1"


async def test_failed_update_sets_the_old_deadline_in_the_guest_again(node: MemoryNode, sandbox: Sandbox) -> None:
    before = sandbox.deadline.expires_at
    node.state.database.faults.fail_next("sandboxes.save", HostError("The disk is full."))

    with pytest.raises(HostError, match="disk is full"):
        await set_timeout(node, sandbox, 200)

    await settled(lambda: len(deadlines(node, sandbox)) == 2)
    assert deadlines(node, sandbox) == [200 + GRACE_S, 100 + GRACE_S]
    assert sandbox.deadline.expires_at == before
