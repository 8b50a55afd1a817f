"""A service whose previews are behind a proxy that terminates TLS, as in production, and the names of its previews.

The proxy listens on the port of HTTPS, because some clients compute URLs without a port. It has a loopback address of its own, so that several
services and a web server of the machine do not disturb each other.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Self

import httpx

from tests.support.tcpservice import TcpService, tcp_service
from tests.support.web_servers import certificate

DOMAIN = "preview.localhost"
"""OpenSSL accepts no wildcard directly below ``localhost``."""
ADDRESS = "SANDLOT_TEST_LOCALHOST"
"""Variable with the address of the names."""
NAMES = Path(__file__).parent / "localhost_names"
"""Folder of ``PYTHONPATH`` that makes programs resolve the names."""


class TlsProxy:
    """A proxy that terminates TLS and copies the bytes to a port, and back.

    Args:
        context: Its certificate.
        upstream: Port on 127.0.0.1.
    """

    def __init__(self, context: ssl.SSLContext, upstream: int) -> None:
        self._context, self._upstream = context, upstream
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self.address = "127." + ".".join(str(1 + number % 254) for number in secrets.token_bytes(3))
        self._socket = socket.create_server((self.address, 443))
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._forward, sock=self._socket, ssl=self._context)
        await self._ended.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            copies = [asyncio.create_task(_copy(reader, upstream_writer)), asyncio.create_task(_copy(upstream_reader, writer))]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for copy in copies:
                copy.cancel()
        finally:
            writer.close()
            upstream_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


class PreviewService:
    """A running service with previews behind TLS.

    Args:
        service: The service.
        address: Address of the proxy.
        certificate: File of the certificate that clients must trust.
    """

    def __init__(self, service: TcpService, address: str, certificate: Path) -> None:
        self.service = service
        self.address = address
        self.certificate = certificate

    def environ(self, **own: str) -> dict[str, str]:
        """Return the environment of a client program: it trusts the certificate and resolves the names."""
        return {**os.environ, "SSL_CERT_FILE": str(self.certificate), "PYTHONPATH": str(NAMES), ADDRESS: self.address, **own}

    def get(self, url: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Open a preview by its URL, once its program listens."""
        parts = httpx.URL(url)
        assert (parts.scheme, parts.port) == ("https", None)
        assert parts.host.endswith(f".{DOMAIN}")
        target, sni = parts.copy_with(host=self.address), {"sni_hostname": parts.host}
        with httpx.Client(verify=ssl.create_default_context(cafile=str(self.certificate)), trust_env=False, timeout=60) as client:
            while True:
                response = client.get(target, headers={**(headers or {}), "Host": parts.host}, extensions=sni)
                if response.status_code != HTTPStatus.BAD_GATEWAY:
                    return response


@contextmanager
def preview_service(folder: Path) -> Iterator[PreviewService]:
    """Run a service with previews behind TLS.

    Args:
        folder: Folder of the certificate.
    """
    context, file = certificate(folder, DOMAIN, f"*.{DOMAIN}")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"SANDLOT_PREVIEW_DOMAIN": f"https://{DOMAIN}", "SANDLOT_PREVIEW_PORT": str(port), "SANDLOT_TRUSTED_PROXIES": "127.0.0.1/32"}
    with TlsProxy(context, port) as proxy, tcp_service(settings) as service:
        yield PreviewService(service, proxy.address, file)
