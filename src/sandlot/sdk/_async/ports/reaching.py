"""What of a sandbox listens inside, reached from here."""

from __future__ import annotations

from sandlot.model.errors import SandlotError
from sandlot.sdk._async import backend
from sandlot.sdk._async.ports.forward import AsyncForward
from sandlot.sdk._async.ports.tunnel import AsyncTunnel
from sandlot.sdk._async.saved.lasting import AsyncLasting

LOCAL_HOST = "127.0.0.1"


class AsyncReaching(AsyncLasting):
    """The part of a sandbox that leads to its ports."""

    async def tunnel(self, port: int) -> AsyncTunnel:
        """Connect to what listens on a port inside: on the sandbox's own loopback, so that it needs no network.

        Args:
            port: 1 to 65535.

        Raises:
            InvalidRequestError: There is no such port.
            NotFoundError: ``port_not_found``: nothing listens there.
            LimitError: It has 64 connections already.
            TimeoutExceededError: What listens there accepts nobody for 10 s.
            ConflictError: ``sandbox_paused``: it rests and is not resumed by being used.
            SandboxEndedError: It has ended.
        """
        return await AsyncTunnel.open(self._client, self._info.id, port)

    async def forward(
        self, port: int, local_port: int = 0, *, host: str = LOCAL_HOST, on_error: backend.Callback[SandlotError] | None = None
    ) -> AsyncForward:
        """Listen on this machine, and carry every connection to a port inside.

        Args:
            port: Inside, 1 to 65535. What listens there may come later.
            local_port: Here; 0 is any that is free, which :attr:`AsyncForward.local_port` tells.
            host: Where to listen; whoever reaches that reaches the port inside.
            on_error: Called where a connection cannot be carried, for example because nothing listens inside.

        Raises:
            OSError: The local port is somebody else's.
        """
        return await AsyncForward(self._client, self._info.id, port, host, on_error).begin(local_port)
