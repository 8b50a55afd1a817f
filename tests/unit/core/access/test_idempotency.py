"""A create that is sent twice is done once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.core.access.idempotency import check_key
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError
from sandlot.model.states import State
from tests.support.service import BASE, Bench

ALICE, BOB = Principal(OwnerId("a" * 12), "alice"), Principal(OwnerId("b" * 12), "bob")


async def test_repeated_create_returns_the_same_sandbox(at: Bench) -> None:
    sandboxes = await asyncio.gather(*(at.sandboxes.create(ALICE, BASE, key="once") for _ in range(5)))
    assert len({sandbox.id for sandbox in sandboxes}) == 1
    other, somebody_elses = await at.sandboxes.create(ALICE, BASE, key="twice"), await at.sandboxes.create(BOB, BASE, key="once")
    assert len({sandboxes[0].id, other.id, somebody_elses.id}) == 3


async def test_repeated_create_returns_a_sandbox_that_has_ended(at: Bench) -> None:
    sandbox = await at.sandboxes.create(ALICE, BASE, key="once")
    await at.sandboxes.kill(ALICE, sandbox.id)
    again = await at.sandboxes.create(ALICE, BASE, key="once")
    assert again.id == sandbox.id
    assert again.exit is not None


async def test_other_request_with_the_same_key_is_refused(at: Bench) -> None:
    await at.sandboxes.create(ALICE, BASE, key="once")
    with pytest.raises(ConflictError):
        await at.sandboxes.create(ALICE, replace(BASE, env={"A": "1"}), key="once")
    assert len(at.sandboxes.list(ALICE)) == 1


async def test_failed_create_frees_its_key(at: Bench) -> None:
    at.driver.faults.raises["boot"] = [HostError("no", code=ErrorCode.HOST_NOT_READY)]
    with pytest.raises(HostError):
        await at.sandboxes.create(ALICE, BASE, key="once")
    sandbox = await at.sandboxes.create(ALICE, BASE, key="once")
    assert at.sandboxes.list(ALICE) == [sandbox]


async def test_repeated_create_waits_for_the_end_of_an_abandoned_one(at: Bench) -> None:
    release = at.driver.faults.hold("connect")
    first = asyncio.create_task(at.sandboxes.create(ALICE, BASE, key="once"))
    await at.driver.faults.reach("connect")
    first.cancel()
    await asyncio.wait({first})
    again = asyncio.create_task(at.sandboxes.create(ALICE, BASE, key="once"))
    await asyncio.sleep(0.1)
    release.set()
    sandbox = await again
    assert sandbox.state is State.RUNNING
    assert at.sandboxes.list(ALICE) == [sandbox]


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256, "a\n"])
def test_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_key(key)
