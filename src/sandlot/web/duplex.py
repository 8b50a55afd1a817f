"""Forward data between a tunnel and the client of a WebSocket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Protocol

from sandlot.model.errors import ConflictError
from sandlot.model.tunnels import Tunnel


class Peer(Protocol):
    """Connection of the service to the client of a tunnel."""

    gone: asyncio.Event
    """Set when the client has disconnected."""

    async def receive(self) -> bytes | None:
        """Return the next data of the client, ``b""`` if the client sends nothing more, or None if the client has disconnected."""
        ...

    async def send(self, data: bytes) -> None:
        """Send data to the client, and wait while the client does not read."""
        ...

    async def ended(self) -> None:
        """Report to the client that the program sends nothing more."""
        ...


async def carry(tunnel: Tunnel, peer: Peer) -> bool:
    """Forward data in both directions until the tunnel has ended or the client has disconnected.

    Returns:
        True if the tunnel has ended and the client is still connected.
    """
    sending, receiving = asyncio.create_task(_send(tunnel, peer)), asyncio.create_task(_receive(tunnel, peer))
    leaving = asyncio.create_task(peer.gone.wait())
    tasks: list[asyncio.Task[Any]] = [sending, receiving, leaving]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if peer.gone.is_set():
            return False
        (receiving if receiving.done() else sending).result()
        return receiving.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(tunnel: Tunnel, peer: Peer) -> None:
    """Send the client's data to the program until the client disconnects."""
    while (piece := await peer.receive()) is not None:
        if not piece:
            await tunnel.end()
            continue
        with suppress(ConflictError):  # the tunnel has ended or was interrupted; `_receive` reports this
            await tunnel.send(piece)


async def _receive(tunnel: Tunnel, peer: Peer) -> None:
    """Send the program's data to the client until the tunnel has ended."""
    async for piece in tunnel:
        await peer.send(piece)
    await peer.ended()
    await tunnel.wait_ended()
