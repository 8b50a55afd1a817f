"""What tests ask of Tensorlake's client again and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tensorlake.sandbox import AsyncPty, RemoteAPIError

MIB = 1 << 20


def status(refused: Callable[[], object]) -> int:
    """The status that its client was refused with."""
    with pytest.raises(RemoteAPIError) as told:
        refused()
    return int(told.value.status_code)


def until_so(happened: Callable[[], bool]) -> None:
    """Return once something has happened."""
    for _ in range(600):
        if happened():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


async def status_of(refused: Awaitable[object]) -> int:
    """The status that its asynchronous client was refused with."""
    with pytest.raises(RemoteAPIError) as told:
        await refused
    return int(told.value.status_code)


async def until_so_there(happened: Callable[[], Awaitable[bool]]) -> None:
    """Return once something has happened that its asynchronous client is asked for."""
    for _ in range(600):
        if await happened():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never happened")


async def exit_code_of(pty: AsyncPty) -> int:
    """Wait for the end of a terminal and for the close of its connection.

    Once the program has ended, the client (0.5.162) drops the connection without closing it. The garbage collector then finds an unclosed
    transport, in this test or in a later one.
    """
    connection = pty._ws  # noqa: SLF001 - the client has no public name for it
    exit_code = int(await pty.wait(20))
    if connection is not None:
        await connection.wait_closed()
    return exit_code
