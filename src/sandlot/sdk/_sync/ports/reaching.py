# Made from src/sandlot/sdk/_async/ports/reaching.py by scripts/unasync.py; change that file, not this one.
"""What of a sandbox listens inside, reached from here."""

from __future__ import annotations

from sandlot.model.errors import SandlotError
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.ports.forward import Forward
from sandlot.sdk._sync.ports.tunnel import Tunnel
from sandlot.sdk._sync.saved.lasting import Lasting

LOCAL_HOST = "127.0.0.1"


class Reaching(Lasting):
    """The part of a sandbox that leads to its ports."""

    def tunnel(self, port: int) -> Tunnel:
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
        return Tunnel.open(self._client, self._info.id, port)

    def forward(self, port: int, local_port: int = 0, *, host: str = LOCAL_HOST, on_error: backend.Callback[SandlotError] | None = None) -> Forward:
        """Listen on this machine, and carry every connection to a port inside.

        Args:
            port: Inside, 1 to 65535. What listens there may come later.
            local_port: Here; 0 is any that is free, which :attr:`Forward.local_port` tells.
            host: Where to listen; whoever reaches that reaches the port inside.
            on_error: Called where a connection cannot be carried, for example because nothing listens inside.

        Raises:
            OSError: The local port is somebody else's.
        """
        return Forward(self._client, self._info.id, port, host, on_error).begin(local_port)
