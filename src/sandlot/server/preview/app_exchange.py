"""Requests to servers of a vendor inside sandboxes, which a compatibility API of this service answers.

Some clients compute the address of such a server, ``PORT-SANDBOX.DOMAIN``, and ignore every other address that they are given. Their requests arrive
at the preview listener, and are passed to the app of the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
from starlette.types import ASGIApp, Message

from sandlot.compat.vendor import VendorApi
from sandlot.server.preview.client_stream import ClientStream
from sandlot.server.preview.forwarding import Client, Headers
from sandlot.server.preview.http_events import HttpEvents
from sandlot.web.connections import CONNECTION, Connection
from sandlot.web.errors import ResponseInterruptedError
from sandlot.web.listener import HUNG_UP
from sandlot.web.preview_urls import PreviewAddress


@dataclass(frozen=True, slots=True)
class AppRequest:
    """A request for a compatibility API.

    Args:
        path: Path with the prefix of the API.
        headers: Headers for the API.
    """

    path: str
    headers: Headers


def find_app_request(host: str, path: str, headers: Headers, address: PreviewAddress, vendors: Iterable[VendorApi]) -> AppRequest | None:
    """Return the request for the compatibility API that owns it; None if the request is for a program in the sandbox. Pure.

    Args:
        host: Value of Host.
        path: Path of the request, decoded, without the query.
        headers: Lower-case names and values.
        address: Address of the previews.
        vendors: Compatibility APIs.
    """
    named = address.parse_host(host)
    if named is None:
        return None
    sandbox, port = named
    for vendor in vendors:
        servers = vendor.servers
        if servers is not None and port in servers.ports and servers.owns(path):
            own = servers.headers(sandbox, port)
            kept = [(name, value) for name, value in headers if name not in {name for name, _ in own}]
            return AppRequest(vendor.prefix + path, [*kept, *own])
    return None


class AppExchange:
    """A request that the app of the service answers.

    Args:
        http: State of the connection.
        events: Events of the client.
        stream: Bytes of the connection.
        share: Place of the connection among all connections, which counts for the key of the request.
        app: App of the service.
        timeout_s: Seconds for which a client that reads nothing is waited for.
    """

    def __init__(self, http: h11.Connection, events: HttpEvents, stream: ClientStream, share: Connection, app: ASGIApp, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._http = http
        self._events = events
        self._stream = stream
        self._share = share
        self._is_bodyless = self._is_head = False
        self._app = app
        self._is_received = False

    async def run(self, request: h11.Request, target: AppRequest, peer: Client) -> None:
        """Pass the request to the app, and the app's response to the client.

        Raises:
            ConnectionResetError: The connection must be closed.
        """
        raw_path, _, query = request.target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode(),
            "method": request.method.decode("ascii", "replace"),
            "scheme": peer.scheme,
            "path": target.path,
            "raw_path": raw_path,
            "query_string": query,
            "root_path": "",
            "headers": target.headers,
            "client": (peer.address, 0),
            "server": None,
            "state": {CONNECTION: self._share, HUNG_UP: self._stream.has_hung_up},
        }
        self._is_head = request.method == b"HEAD"
        with suppress(ResponseInterruptedError):  # the response is not complete
            await self._app(scope, self._receive, self._send)
        if self._http.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}:
            raise ConnectionResetError

    async def _receive(self) -> Message:
        if self._is_received:
            await asyncio.shield(self._stream.gone)
            return {"type": "http.disconnect"}
        try:
            if self._http.they_are_waiting_for_100_continue:
                await self._stream.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"", self._timeout_s)
            event = await self._events.next()
        except (h11.RemoteProtocolError, ConnectionResetError, TimeoutError):
            return {"type": "http.disconnect"}
        if isinstance(event, h11.Data):
            return {"type": "http.request", "body": bytes(event.data), "more_body": True}
        self._is_received = True
        return {"type": "http.request", "body": b"", "more_body": False} if isinstance(event, h11.EndOfMessage) else {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._stream.gone.done():
            return  # `_receive` reports it to the app
        if message["type"] == "http.response.start":
            self._is_bodyless = self._is_head or message["status"] in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
            data = self._http.send(h11.Response(status_code=message["status"], headers=list(message.get("headers", ()))))
        else:
            body = message.get("body", b"")
            data = (self._http.send(h11.Data(data=body)) if body and not self._is_bodyless else b"") or b""
            if not message.get("more_body", False):
                data += self._http.send(h11.EndOfMessage()) or b""
        try:
            if data:
                await self._stream.write(data, self._timeout_s)
        except (ConnectionResetError, TimeoutError):
            self._stream.transport.abort()


def decoded_path(target: bytes) -> str:
    """Return the path of a target, decoded as servers do it."""
    return unquote(target.partition(b"?")[0].decode("latin-1"))
