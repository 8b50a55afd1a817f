"""The preview listener: its socket, its address, and the connections of its clients.

Invariants:
- Previews have a separate port: pages of programs are never served under the origin of the API.
- The number of connections is limited, with a share for each address (``web/connections.py``). A connection counts before the handshake of TLS.
- A local service opens the listener on 127.0.0.1 when the first preview is asked for. From then on, each service of the data directory opens it at
  its start, on the same port if no other program uses it, so that addresses stay valid.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog
from starlette.types import ASGIApp

from sandlot.compat.vendor import VendorApi
from sandlot.core.node import Node
from sandlot.model.errors import HostError, InvalidRequestError, UnavailableError
from sandlot.server.preview.client_stream import ClientStream
from sandlot.server.preview.connection import STALL_TIMEOUT_S, ClientConnection
from sandlot.server.preview.forwarding import Client, Headers
from sandlot.server.preview.program_connection import ProgramConnections
from sandlot.server.preview.responses import refused_connection
from sandlot.server.preview.tls import TlsConnection
from sandlot.server.settings import Settings
from sandlot.web import listener
from sandlot.web.connections import ConnectionShares, forwarded_address
from sandlot.web.preview_urls import LOCALHOST, PreviewAddress, no_previews
from sandlot.web.request_turns import RequestTurns

LOOPBACK: Final = "127.0.0.1"
MAX_PORT: Final = 65535
PORT_FILE: Final = "preview-port"
"""File in the data directory with the port of a local service."""

_log = structlog.get_logger("sandlot.preview")


class PreviewListener:
    """The preview listener of a service.

    Args:
        settings: Settings of the operator.
        node: Services of the node.
        vendors: Compatibility APIs, some of which take the place of servers inside sandboxes.
        turns: Turns of the requests of the service, in which the requests of previews have their part.
        max_connections: Largest number of connections.
        local: True for a local service, which opens the listener on demand.
    """

    def __init__(
        self, settings: Settings, node: Node, vendors: Sequence[VendorApi], turns: RequestTurns, *, max_connections: int, local: bool
    ) -> None:
        self._settings = settings
        self._local = local
        self._opening = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        now_s = asyncio.get_running_loop().time
        self._shares = ConnectionShares(max_connections, now_s, trusted_proxies=settings.trusted_proxies)
        self.node = node
        self.turns = turns
        self.vendors = vendors
        self.app: ASGIApp
        """App of the service, to which requests for compatibility APIs are passed. Set before the listener is opened."""
        self.programs = ProgramConnections(lambda access: node.tunnels.connect(access.principal, access.sandbox, access.port), now_s)
        self.address: PreviewAddress
        """Address of the previews, once the listener is open."""
        self.bound_port = 0
        """Port of the open listener."""

    @property
    def is_enabled(self) -> bool:
        """True if previews have an address, or get one on demand."""
        return self._local or self._settings.preview_port is not None

    async def require_address(self) -> PreviewAddress:
        """Return the address of the previews. A local service opens the listener if it is not open.

        Raises:
            UnsupportedError: The service has no preview listener.
            HostError: The port cannot be opened.
        """
        if not self.is_enabled:
            raise no_previews()
        async with self._opening:
            if self._server is None:
                await self._open()
        return self.address

    async def open(self) -> None:
        """Open the listener if the settings name a port, or if a local service of this data directory had one before.

        Raises:
            InvalidRequestError: The certificate cannot be used.
            HostError: The port cannot be opened.
        """
        if self._last_port() if self._local else self._settings.preview_port is not None:
            await self.require_address()

    async def aclose(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self.programs.aclose()

    def client_of(self, peer: str, headers: Headers, *, is_tls: bool) -> Client:
        """Return the client of a request, which a trusted proxy may have forwarded."""
        if not self._shares.is_trusted(peer):
            return Client(peer, "https" if is_tls else self.address.scheme)
        address = forwarded_address(peer, [value for name, value in headers if name == b"x-forwarded-for"], self._shares.trusted_proxies)
        scheme = next((value for name, value in headers if name == b"x-forwarded-proto"), b"")
        return Client(address, scheme.decode() if scheme in {b"http", b"https"} else self.address.scheme)

    async def _open(self) -> None:
        settings = self._settings
        host, port = (
            (LOOPBACK, self._last_port()) if self._local else (settings.preview_host or settings.host or LOOPBACK, settings.preview_port or 0)
        )
        tls = _tls_context(settings)
        try:
            bound = listener.tcp_socket(host, port)
        except HostError:
            if not self._local or port == 0:
                raise
            bound = listener.tcp_socket(host, 0)  # another program has taken the port
        port = self.bound_port = bound.getsockname()[1]
        address = settings.preview_domain or PreviewAddress("http", LOCALHOST, port)
        self.address = address if tls is None else replace(address, scheme="https")
        if self._local:
            with suppress(OSError):
                (settings.data_dir / PORT_FILE).write_text(str(port))
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ClientStream(self._connected, None if tls is None else TlsConnection(tls)), sock=bound, backlog=listener.BACKLOG
        )
        _log.info("preview.listening", host=host, port=port, domain=self.address.authority)

    def _last_port(self) -> int:
        try:
            port = int((self._settings.data_dir / PORT_FILE).read_text())
        except (OSError, ValueError):
            return 0
        return port if 0 < port <= MAX_PORT else 0

    def _connected(self, stream: ClientStream) -> None:
        """Serve a connection, or refuse it if its address has too many. Its place is kept until the connection is closed."""
        try:
            share = self._shares.open(stream.address, stream.transport.abort)
        except UnavailableError as error:
            if stream.is_tls:  # a response would need the handshake, for which the connection has no place
                stream.transport.abort()
            else:
                stream.transport.write(refused_connection(error))
                stream.close(STALL_TIMEOUT_S)
            return
        stream.closed.add_done_callback(lambda _: share.lost())
        task = asyncio.create_task(self._serve(ClientConnection(stream, share, self), stream))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, connection: ClientConnection, stream: ClientStream) -> None:
        try:
            await connection.serve()
        except asyncio.CancelledError:
            stream.transport.abort()
            raise
        except Exception:  # noqa: BLE001 - a defect ends one connection only
            _log.exception("preview.defect")
            stream.transport.abort()
        finally:
            stream.close(STALL_TIMEOUT_S)


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    if settings.preview_tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.preview_tls_cert, settings.preview_tls_key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequestError(
            f"The certificate of the previews cannot be used: {error}.",
            hint="Set SANDLOT_PREVIEW_TLS_CERT to a PEM file with the certificate chain, and SANDLOT_PREVIEW_TLS_KEY to its key.",
            fields={"setting": "SANDLOT_PREVIEW_TLS_CERT"},
        ) from None
    return context
