"""Connections to ports inside sandboxes."""

from __future__ import annotations

from typing import Protocol

from sandlot.model.streams import Duplex


class Tunnel(Duplex[bytes, bytes], Protocol):
    """A connection to a program that listens on a port inside a sandbox.

    Iterate over the tunnel for the data that the program sends. The iteration ends when the program has closed its direction of the connection.
    """

    async def wait_ended(self) -> None:
        """Wait until both directions are closed, or until the program has closed the connection."""
        ...
