"""Children of one fork go on together, or none of them does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandlot.core.saved.gate import Gate
from sandlot.model.errors import HostError, UnavailableError

BOX: Any = None
"""It does not matter to the gate who comes."""


async def test_it_opens_when_all_have_come() -> None:
    gate = Gate(3)
    first = [asyncio.create_task(gate.pass_through(BOX)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in first)
    await asyncio.gather(gate.pass_through(BOX), *first)


async def test_shut_it_lets_nobody_through_whether_they_wait_or_come_later() -> None:
    gate = Gate(3)
    waiting = asyncio.create_task(gate.pass_through(BOX))
    await asyncio.sleep(0)
    gate.shut(HostError("the runtime failed"))
    gate.shut(HostError("something else"))
    with pytest.raises(UnavailableError, match="the runtime failed") as error:
        await waiting
    assert gate.is_own(error.value)
    with pytest.raises(UnavailableError):
        await gate.pass_through(BOX)
    assert not gate.is_own(HostError("the runtime failed"))


async def test_once_open_it_stays_open() -> None:
    gate = Gate(1)
    await gate.pass_through(BOX)
    gate.shut(HostError("too late"))
    await gate.pass_through(BOX)
