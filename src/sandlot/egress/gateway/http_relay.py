"""HTTP/1.1 between a program and a server, request by request. No I/O.

Both heads are parsed and written again by h11, so the server gets exactly the requests that were decided.

Invariants:
- A request is read only after the response to the one before was sent. Nothing of a pipelined request can reach the server undecided.
- The sizes of heads and buffers are limited. Bodies are passed on in pieces.
- The only other protocol that may follow a request is WebSocket. Requests inside an upgrade to HTTP/2 could not be decided.
"""

from __future__ import annotations

from typing import Final, Literal, cast

import h11

from sandlot.egress.gateway.http_head import DEFAULT_PORT
from sandlot.egress.policy.destinations import Destination

MAX_HEAD_BYTES: Final = 64 * 1024
"""Maximum size of the head of a request or response."""

_ENDED: Final = (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR)
_KEPT_OPTIONS: Final = frozenset({b"close", b"keep-alive"})
_SWITCHING: Final = 101
_HAS_NO_BODY: Final = frozenset({204, 304})

RequestPart = h11.Request | h11.Data | h11.EndOfMessage | h11.ConnectionClosed
Pending = Literal["needs_data", "paused", "over"]
ResponsePart = h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage | h11.ConnectionClosed


class HttpRelay:
    """The two HTTP connections of one relayed connection: the one of the program, and the one to the server.

    Args:
        destination: Destination that the program named, for requests of HTTP/1.0 without a ``Host`` header.
    """

    def __init__(self, destination: Destination) -> None:
        self._default_host = str(destination).removesuffix(f":{DEFAULT_PORT}").encode()
        self._program = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._is_before_request = True
        """True before the first byte of a request. Empty lines are ignored here, as some programs send one after a body (RFC 9112, 2.2)."""
        self._server = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._is_http_1_0 = False
        self.requests = 0
        """Number of requests that were passed on."""
        self.is_upgraded = False
        """True after the server has switched to another protocol. All further bytes are copied."""

    # -- requests -----------------------------------------------------------------------------------------------------

    def receive_from_program(self, data: bytes) -> None:
        """Add bytes of the program; none at the end of its stream. Call only if :meth:`next_request_part` needs data."""
        if data and self._is_before_request:
            data = data.lstrip(b"\r\n")
            if not data:
                return
            self._is_before_request = False
        self._program.receive_data(data)

    def next_request_part(self) -> RequestPart | Pending:
        """Return the next part of the program's requests.

        ``paused``: the response to the last request comes first. ``over``: the last request was the last one of its connection, and nothing that
        follows belongs to it.

        Raises:
            h11.RemoteProtocolError: The request is malformed.
        """
        if self._program.their_state is h11.MUST_CLOSE:
            return "over"
        return cast("RequestPart | Pending", _part(self._program.next_event()))

    @property
    def is_in_head(self) -> bool:
        """True if the head of a request has arrived in part."""
        return self._program.their_state is h11.IDLE and bool(self._program.trailing_data[0])

    def request_bytes(self, part: RequestPart) -> bytes:
        """Return the bytes of a part of a decided request for the server.

        Raises:
            h11.LocalProtocolError: The server has ended the connection.
        """
        if isinstance(part, h11.Request):
            self.requests += 1
            self._is_http_1_0 = part.http_version == b"1.0"
            part = h11.Request(method=part.method, target=part.target, headers=self._request_headers(part))
        return self._server.send(part) or b""

    def _request_headers(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        """Return the headers of a request for the server. Options of the connection that could remove other headers are left out."""
        upgrades = _values(request, b"upgrade") == [b"websocket"]
        headers = []
        options = []
        for (name, value), (raw_name, _) in zip(request.headers, request.headers.raw_items(), strict=True):
            if name == b"connection":
                options += [token for token in _tokens(value) if token in _KEPT_OPTIONS]
            elif name != b"http2-settings" and (name != b"upgrade" or upgrades):
                headers.append((raw_name, value))
        if request.http_version == b"1.0":
            options = [b"close"]  # h11 closes the connection to the program after the response
        if upgrades:
            options.append(b"Upgrade")
        if not any(name == b"host" for name, _ in request.headers):
            headers.append((b"Host", self._default_host))
        if options:
            headers.append((b"Connection", b", ".join(options)))
        return headers

    # -- responses ----------------------------------------------------------------------------------------------------

    def receive_from_server(self, data: bytes) -> None:
        """Add bytes of the server; none at the end of its stream. Call only if :meth:`next_response_part` needs data."""
        self._server.receive_data(data)

    def next_response_part(self) -> ResponsePart | Pending:
        """Return the next part of the server's responses. ``paused``: the response is complete.

        Raises:
            h11.RemoteProtocolError: The response is malformed or incomplete.
        """
        return cast("ResponsePart | Pending", _part(self._server.next_event()))

    def response_bytes(self, part: ResponsePart) -> bytes:
        """Return the bytes of a part of a response for the program."""
        if isinstance(part, h11.InformationalResponse):
            self.is_upgraded = part.status_code == _SWITCHING
            if self._is_http_1_0 and not self.is_upgraded:
                return b""  # programs that speak HTTP/1.0 do not know these responses
        elif isinstance(part, h11.Response) and _ends_with_connection(part):
            part = h11.Response(status_code=part.status_code, reason=part.reason, headers=[*part.headers.raw_items(), (b"Connection", b"close")])
        return self._program.send(part) or b""

    @property
    def awaits_response(self) -> bool:
        """True if no part of the final response to the last request was sent: an error response can take its place."""
        return self._program.our_state in {h11.IDLE, h11.SEND_RESPONSE}

    @property
    def is_waiting(self) -> bool:
        """True if the response to the last request is not complete."""
        return self._program.our_state in {h11.SEND_RESPONSE, h11.SEND_BODY}

    def take_rest(self) -> tuple[bytes, bytes]:
        """Return the bytes that have arrived after the upgrade, of the program and of the server."""
        return self._program.trailing_data[0], self._server.trailing_data[0]

    @property
    def incomplete_bytes(self) -> int:
        """Number of bytes that wait for the rest of a head or for their turn, of both sides."""
        return sum(len(connection.trailing_data[0]) for connection in (self._program, self._server))

    # -- the end ------------------------------------------------------------------------------------------------------

    def start_next_cycle(self) -> bool:
        """Prepare for the next request. Return False if the last request or its response is incomplete, or no other request may follow."""
        if any(state is not h11.DONE for connection in (self._program, self._server) for state in connection.states.values()):
            return False
        rest, has_ended = self._program.trailing_data
        self._program.start_next_cycle()
        self._server.start_next_cycle()
        self._is_before_request = not rest
        if rest[:1] in {b"\r", b"\n"}:  # h11 refuses empty lines, so another parser gets what follows them
            self._program = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
            self._is_before_request = True
            self.receive_from_program(rest)
            if has_ended:
                self.receive_from_program(b"")
        return True

    @property
    def is_over(self) -> bool:
        """True if no other request may follow and no response is missing."""
        return self._program.our_state in _ENDED or (self._program.our_state is h11.DONE and self._server.their_state in _ENDED)


def _part(event: object) -> object:
    return "needs_data" if event is h11.NEED_DATA else "paused" if event is h11.PAUSED else event


def _ends_with_connection(response: h11.Response) -> bool:
    """Return True if the server closes the connection after a response without saying so in a header."""
    has_length = _values(response, b"content-length") or _values(response, b"transfer-encoding")
    is_kept = response.http_version == b"1.1" and (has_length or response.status_code in _HAS_NO_BODY)
    return not is_kept and b"close" not in _values(response, b"connection")


def _values(message: h11.Request | h11.Response, header: bytes) -> list[bytes]:
    return [token for name, value in message.headers if name == header for token in _tokens(value)]


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip().lower() for token in value.split(b",")]
