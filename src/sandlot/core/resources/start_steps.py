"""Connect to the guest of a started sandbox, or find out that the sandbox has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sandlot.core.resources.drivers import STEP_TIMEOUT_S
from sandlot.host.blocking import outlast_cancellation
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.link.turns import LinkTurns
from sandlot.model.ports import Exit, Instance


class ExitedError(Exception):
    """The processes of an instance ended before the guest was connected."""

    def __init__(self, exit_: Exit) -> None:
        super().__init__(exit_.detail)
        self.exit = exit_


async def connect_guest(
    instance: Instance,
    exited: asyncio.Future[Exit],
    services: Mapping[str, GuestService],
    turns: LinkTurns,
    *,
    timeout_s: float = STEP_TIMEOUT_S,
) -> Link:
    """Connect to the guest of a started instance.

    Args:
        instance: The instance.
        exited: Future that is done when the processes of the instance have ended.
        services: Services of the host that the guest may use, by name.
        turns: Pauses of all links of the service.
        timeout_s: Seconds until the attempt is aborted.

    Raises:
        ExitedError: The processes ended before the guest was connected.
        TimeoutError: The guest did not respond in time.
    """

    async def connect() -> Link:
        return await Link.open(await instance.connect(), services=services, turns=turns)

    connecting = asyncio.create_task(connect())
    ends: set[asyncio.Future[Any]] = {exited, connecting}
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not connecting.done():
            raise ExitedError(exited.result())  # noqa: TRY301 - the handler below closes the connection, as after every failure
        return connecting.result()
    except BaseException:
        connecting.cancel()
        await outlast_cancellation(_close_late_link(connecting))
        raise


async def _close_late_link(connecting: asyncio.Task[Link]) -> None:
    await asyncio.wait({connecting})
    if not connecting.cancelled() and connecting.exception() is None:
        with suppress(Exception):
            await connecting.result().aclose()
