"""One connection of a program in a sandbox to a destination outside.

The guest has already accepted the connection of the program and relays its bytes over a stream. The gateway decides, resolves, connects, compares the
first bytes with the destination and then copies both directions.

Invariants:
- A name is resolved after the policy has allowed it, and a connection goes only to an address that was checked and that the policy does not deny.
- No byte of a program reaches a server before the bytes up to this one were compared with the destination. Every request of plain HTTP is decided.
  The second ClientHello for which a server of TLS may ask must name the same server as the first one.
- No more is read from a server than the send queue of the stream can take, and no more from a program than one piece. A side that does not read
  stops the other side. What waits for the rest of a ClientHello or of a head counts in the unread bytes of the link.
- If one side ends its direction, the other side sees the end. If one side resets the connection, or the gateway cuts it, the other side sees a reset.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

import h11

from sandlot.egress.gateway.access import Access
from sandlot.egress.gateway.activity import Traffic
from sandlot.egress.gateway.checks import check_hello, check_request
from sandlot.egress.gateway.client_hello import ClientHello, HelloResult, parse_client_hello
from sandlot.egress.gateway.first_bytes import HTTP_2, Protocol, recognise
from sandlot.egress.gateway.hello_retry import MAX_RESPONSE_BYTES, EarlyRecords, Response, parse_response
from sandlot.egress.gateway.http_relay import HttpRelay
from sandlot.egress.gateway.responses import ACCESS_DENIED_ALERT, http_response
from sandlot.egress.outbound.connector import ConnectionFailedError
from sandlot.egress.policy.addresses import Address
from sandlot.egress.policy.decisions import Content, Permission
from sandlot.egress.policy.destinations import Destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.link.services import GuestStream
from sandlot.model.network_activity import RefusalReason

READ_BYTES: Final = 64 * 1024
"""Maximum number of bytes that are read from a server at once."""
BUFFER_BYTES: Final = 64 * 1024
"""Size of each of the kernel's two buffers of a connection with ``small_buffers``. The kernel takes twice the size (socket(7))."""
FIRST_BYTES_S: Final = 0.05
"""Seconds for which the first bytes of a program may be held back.

On ports of HTTP and HTTPS, the gateway also waits for them before it connects, so that a refusal can be in the program's protocol. Elsewhere, a text
that could become the first line of an HTTP request is passed on after this time: some protocols send single letters.
"""
HEAD_S: Final = 30.0
"""Seconds that a program has for a ClientHello or the head of a request, from its first byte on."""
MAX_FIRST_PIECES: Final = 256
"""Maximum number of pieces in which a program may send its first bytes. They are parsed again with each piece."""

HALF_CLOSED_S: Final = 600.0
"""Seconds that a server may send nothing after the program has ended its direction: a program that has closed its connection looks the same."""
PARTS: Final = 64
"""Number of parts of HTTP messages after which other tasks run."""

_KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
"""Socket options that find out within two minutes that a server is gone (tcp(7))."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which close(2) sends RST (socket(7))."""
_FORBIDDEN: Final = 403
_HEAD: Final = b"HEAD "
_TLS: Final = b"\x16"
"""First byte of a ClientHello."""


class RefusedError(Exception):
    """The connection or one of its requests is refused.

    Args:
        failed: Step that has failed, for the log: ``lookup``, ``connection`` or ``response``. Empty: the policy or a limit refuses.
    """

    def __init__(self, refusal: Refusal, failed: str = "") -> None:
        super().__init__(str(refusal.reason))
        self.refusal = refusal
        self.failed = failed


class _CutError(Exception):
    """The connection is reset: one side has reset it or violates its protocol."""


class _OverError(Exception):
    """An HTTP connection has ended after its last response."""


class Connection:
    """One connection of a sandbox.

    Args:
        stream: Stream to the guest.
        destination: Destination that the program named.
        access: State of the sandbox.
        small_buffers: Give the connection to the server buffers of a fixed size. By default, they grow to megabytes with the server's distance.
    """

    def __init__(self, stream: GuestStream, destination: Destination, access: Access, *, small_buffers: bool = False) -> None:
        self._stream = stream
        self._destination = destination
        self._access = access
        self._small_buffers = small_buffers
        self._loop = asyncio.get_running_loop()
        self._addresses: Sequence[Address] = ()
        self._address: Address | None = None
        self._socket: socket.socket | None = None
        self._connected = asyncio.Event()
        self._traffic: Traffic | None = None
        self._first = bytearray()
        self._pieces = 0
        self._first_passed = 0
        """Number of the first bytes that were passed on before their protocol was known."""
        self._protocol: Protocol = "incomplete"
        self._early: EarlyRecords | None = None
        self._http: HttpRelay | None = None
        self._request: h11.Request | None = None
        self._head_until_s: float | None = None
        self._next_cycle = asyncio.Event()
        self._program_ended = False
        self._server_spoke = False
        self._server_first = bytearray()
        self._response: Response = "incomplete"
        """Response of the server to a ClientHello."""
        self._responded = asyncio.Event()
        self._is_broken = False
        self._is_clean = False
        self._parts = 0
        """Number of parts of HTTP messages, in both directions."""

    async def serve(self) -> None:
        """Serve the connection until it ends. Cancel the task, or call :meth:`cut`, to interrupt it."""
        try:
            await self._run()
            self._is_clean = True
        except _OverError:
            self._is_clean = True
        except RefusedError as error:
            self._access.on_refused(error.refusal, error.failed)
            await self._tell(error.refusal)
        except _CutError:
            self._stream.reset("conflict", "The connection was reset.")
        finally:
            self._close()

    async def _run(self) -> None:
        await self._open()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy_up())
                group.create_task(self._copy_down())
        except ExceptionGroup as errors:
            # A refusal matters more than the error that it causes in the other direction.
            raise min(errors.exceptions, key=lambda error: not isinstance(error, RefusedError)) from None

    def cut(self) -> None:
        """Reset the connection on both sides, for example because the policy does not allow it any more. Idempotent."""
        self._stream.reset("forbidden", "The network policy does not allow the connection.")

    def is_allowed(self) -> bool:
        """Return whether the present policy allows this connection. Further requests of plain HTTP are decided one by one."""
        decisions, destination = self._access.decisions, self._destination
        content: Content = "unknown" if self._protocol in {"incomplete", "http"} else "opaque"
        permission = decisions.decide(destination, content)
        if isinstance(permission, Refusal):
            return False
        if self._address is not None and decisions.decide_address(permission, destination, self._address) is not None:
            return False
        if isinstance(self._protocol, ClientHello):
            return check_hello(self._protocol, decisions, destination) is None
        if self._address is not None and self._http is not None and self._http.is_upgraded and self._request is not None:
            return check_request(self._request, decisions, destination, self._address) is None
        return True

    # -- opening ------------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Decide about the destination, and connect unless the first bytes of the program must be known before."""
        self._permission()
        self._addresses = await self._resolve()
        if not self._is_http_port():
            await self._connect()
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_BYTES_S):
                await self._recognise()
        if self._protocol == "incomplete" and not isinstance(self._access.decisions.decide(self._destination, "opaque"), Refusal):
            await self._connect()  # the server may speak first

    def _permission(self) -> Permission:
        permission = self._access.decisions.decide(self._destination)
        if isinstance(permission, Refusal):
            raise RefusedError(permission)
        return permission

    def _is_http_port(self) -> bool:
        return self._destination.port in self._access.decisions.http_ports

    async def _resolve(self) -> Sequence[Address]:
        """Return the addresses that may be tried."""
        try:
            return self._not_denied(await self._access.connector.resolve(self._destination.host, self._access.sandbox))
        except ConnectionFailedError as error:
            raise RefusedError(self._refusal(error.reason), "lookup") from None

    def _not_denied(self, addresses: Sequence[Address]) -> Sequence[Address]:
        permission = self._permission()
        refusals = [self._access.decisions.decide_address(permission, self._destination, address) for address in addresses]
        allowed = [address for address, refusal in zip(addresses, refusals, strict=True) if refusal is None]
        if not allowed:
            raise RefusedError(next(refusal for refusal in refusals if refusal is not None))
        return allowed

    async def _connect(self) -> None:
        """Connect to the destination, unless this has been done."""
        if self._socket is not None:
            return
        async with self._access.connects:
            addresses = self._not_denied(self._addresses)  # the policy may have changed meanwhile
            try:
                connected = await self._access.connector.connect(addresses, self._destination.port)
            except ConnectionFailedError as error:
                raise RefusedError(self._refusal(error.reason), "connection") from None
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for level, option, value in _KEEP_ALIVE:
            connected.setsockopt(level, option, value)
        if self._small_buffers:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        try:
            self._address = ip_address(connected.getpeername()[0])
        except OSError:  # the server has reset the connection already
            raise _CutError from None
        if not self.is_allowed():  # the policy has changed meanwhile
            raise _CutError
        self._traffic = self._access.activity.add_connection(self._destination)
        self._connected.set()

    def _refusal(self, reason: RefusalReason) -> Refusal:
        return Refusal(reason, str(self._destination.host), self._destination.port)

    # -- from the program to the server -------------------------------------------------------------------------------

    async def _copy_up(self) -> None:
        await self._recognise_or_pass()
        if self._protocol == "http":
            if self._server_spoke:
                raise RefusedError(self._refusal(RefusalReason.PROTOCOL_NOT_SUPPORTED))
            self._http = HttpRelay(self._destination)
            await self._relay_requests(self._http)
            return
        self._check_opaque()
        await self._connect()
        if isinstance(self._protocol, ClientHello):
            await self._pass_handshake(self._protocol)
        else:
            await self._send(bytes(self._first[self._first_passed :]))
            self._first.clear()
        await self._copy_program()

    async def _copy_program(self) -> None:
        """Copy all further bytes of the program."""
        while data := await self._receive():
            await self._send(data)
        if self._socket is not None and not self._is_broken:
            with suppress(OSError):  # the server has closed the connection
                self._socket.shutdown(socket.SHUT_WR)

    def _check_opaque(self) -> None:
        """Refuse a connection whose content is not HTTP/1 unless the policy allows the content."""
        decisions, destination = self._access.decisions, self._destination
        if isinstance(self._protocol, ClientHello):
            refusal = check_hello(self._protocol, decisions, destination)
        elif self._protocol == "malformed_tls":
            refusal = self._refusal(RefusalReason.TLS_NAME_MISMATCH)
        elif self._first.startswith(HTTP_2) and self._is_http_port():
            refusal = self._refusal(RefusalReason.PROTOCOL_NOT_SUPPORTED)
        else:
            decision = decisions.decide(destination, "opaque")
            refusal = decision if isinstance(decision, Refusal) else None
        if refusal is not None:
            raise RefusedError(refusal)

    async def _recognise(self) -> None:
        """Receive the first bytes until their protocol is known. May be interrupted and repeated."""
        while self._protocol == "incomplete":
            await self._receive_first()

    async def _receive_first(self) -> None:
        data = await self._receive()
        self._first += data
        self._pieces += 1
        if data:
            self._protocol = recognise(self._first)
        elif self._first[:1] == _TLS:
            self._protocol = "malformed_tls"
        else:
            self._protocol = "http" if self._first.strip() and self._is_http_port() else "other"
        if self._pieces > MAX_FIRST_PIECES and self._protocol == "incomplete":
            raise RefusedError(self._refusal(RefusalReason.PROTOCOL_NOT_SUPPORTED))

    async def _recognise_or_pass(self) -> None:
        """Receive the first bytes until their protocol is known. On ports of other protocols, pass on a text whose line remains incomplete."""
        while self._protocol == "incomplete" and not self._first:
            await self._receive_first()
        deadline_s = self._loop.time() + HEAD_S
        may_pass = not self._is_http_port() and self._first[:1] != _TLS
        while self._protocol == "incomplete":
            is_held = may_pass and len(self._first) > self._first_passed
            try:
                async with asyncio.timeout_at(min(deadline_s, self._loop.time() + FIRST_BYTES_S) if is_held else None if may_pass else deadline_s):
                    await self._receive_first()
            except TimeoutError:
                if not is_held:
                    raise _CutError from None
                if isinstance(self._access.decisions.decide(self._destination, "opaque"), Refusal):
                    may_pass = False
                    continue
                passed, self._first_passed = self._first_passed, len(self._first)
                await self._send(bytes(self._first[passed:]))

    async def _pass_handshake(self, hello: ClientHello) -> None:
        """Pass on a ClientHello and what follows, until the server cannot ask for a second ClientHello any more."""
        await self._send(bytes(self._first[: hello.size]))
        data = bytes(self._first[hello.size :])
        self._first.clear()
        records = self._early = EarlyRecords()
        held_until_s: float | None = None
        pieces = 0
        while self._response != "other":
            await self._send(records.receive(data))
            data = b""
            if self._program_ended and not records.held:
                return
            if records.is_blocked or self._program_ended:
                if self._response == "incomplete":
                    await self._responded.wait()
                    continue
                second = parse_client_hello(records.held)
                if second != "incomplete" or self._program_ended or pieces > MAX_FIRST_PIECES:
                    self._check_second_hello(hello, second)
                    break
            pieces = pieces + 1 if records.held else 0
            held_until_s = (held_until_s or self._loop.time() + HEAD_S) if records.held else None
            try:
                async with asyncio.timeout_at(held_until_s):
                    data = await self._receive()
            except TimeoutError:
                raise _CutError from None
        self._early = None
        await self._send(bytes(records.held) + data)

    def _check_second_hello(self, first: ClientHello, second: HelloResult) -> None:
        """Refuse a connection whose second ClientHello differs from the first one in its server name."""
        refusal = self._refusal(RefusalReason.TLS_NAME_MISMATCH)
        if isinstance(second, ClientHello) and second.server_name == first.server_name:
            allowed = check_hello(second, self._access.decisions, self._destination)
            if allowed is None:
                return
            refusal = allowed
        raise RefusedError(refusal)

    async def _relay_requests(self, http: HttpRelay) -> None:
        http.receive_from_program(bytes(self._first))
        del self._first[max(self._first_passed, len(_HEAD)) :]
        while True:
            try:
                part = http.next_request_part()
            except h11.RemoteProtocolError as error:
                raise RefusedError(self._refusal(_reason_of(error))) from None
            if part == "needs_data":
                await self._receive_request(http)
            elif part == "paused":
                if not http.is_upgraded:
                    self._next_cycle.clear()
                    await self._next_cycle.wait()
                if http.is_upgraded:
                    await self._send(http.take_rest()[0])
                    await self._copy_program()
                    return
            elif part == "over" or isinstance(part, h11.ConnectionClosed):
                await self._end_requests(http)
                return
            else:
                await self._pass_request(http, part)
                if isinstance(part, h11.EndOfMessage):
                    http.start_next_cycle()

    async def _end_requests(self, http: HttpRelay) -> None:
        """Drop what follows the last request of the connection."""
        while await self._receive():
            pass
        if http.is_over:
            raise _OverError

    async def _receive_request(self, http: HttpRelay) -> None:
        if http.is_in_head and self._head_until_s is None:
            self._head_until_s = self._loop.time() + HEAD_S
        try:
            async with asyncio.timeout_at(self._head_until_s):
                http.receive_from_program(await self._receive())
        except TimeoutError:
            raise _CutError from None

    async def _pass_request(self, http: HttpRelay, part: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """Decide about a request, or pass on a part of a decided request."""
        await self._let_others_run()
        if isinstance(part, h11.Request):
            self._request = part
            self._head_until_s = None
            self._check_request(part)
            await self._connect()
            self._check_request(part)
        try:
            data = http.request_bytes(part)
        except h11.LocalProtocolError:  # the server has ended the connection
            raise _CutError from None
        if self._first_passed:
            if bytes(self._first[: self._first_passed]) != data[: self._first_passed]:
                raise RefusedError(self._refusal(RefusalReason.PROTOCOL_NOT_SUPPORTED))
            data, self._first_passed = data[self._first_passed :], 0
        self._first.clear()
        await self._send(data)

    def _check_request(self, request: h11.Request) -> None:
        address = self._address or self._addresses[0]
        refusal = check_request(request, self._access.decisions, self._destination, address)
        if refusal is not None:
            raise RefusedError(refusal)

    # -- from the server to the program -------------------------------------------------------------------------------

    async def _copy_down(self) -> None:
        await self._connected.wait()
        while True:
            data = await self._read()
            if self._http is not None and not self._http.is_upgraded:
                await self._relay_responses(self._http, data)
            else:
                if self._response == "incomplete":
                    self._parse_response(data)
                self._server_spoke = self._server_spoke or bool(data)
                await self._write(data)
            if not data:
                self._stream.end()
                return

    def _parse_response(self, data: bytes) -> None:
        """Find out whether the server asks for a second ClientHello."""
        self._server_first += data[: MAX_RESPONSE_BYTES + 1]
        self._response = parse_response(self._server_first) if data else "other"
        if self._response != "incomplete":
            self._server_first.clear()
            self._responded.set()

    async def _relay_responses(self, http: HttpRelay, data: bytes) -> None:
        """Pass on the responses in the bytes that the server has sent."""
        if not http.is_waiting:
            raise _OverError  # the server has ended the connection, or sends a response to no request
        try:
            http.receive_from_server(data)
            while True:
                part = http.next_response_part()
                if isinstance(part, (str, h11.ConnectionClosed)):
                    break
                await self._let_others_run()
                await self._write(http.response_bytes(part))
                if http.is_upgraded:
                    self._next_cycle.set()
                    await self._write(http.take_rest()[1])
                    return
                if isinstance(part, h11.EndOfMessage):
                    if http.start_next_cycle():
                        self._next_cycle.set()
                    break
        except h11.ProtocolError:
            self._fail_response(http)
        if http.is_over or not data:
            raise _OverError

    def _fail_response(self, http: HttpRelay) -> None:
        """End a connection whose server sends no valid response. A program that reuses a connection repeats its request after a reset only."""
        if http.requests == 1 and http.awaits_response:
            raise RefusedError(self._refusal(RefusalReason.UPSTREAM_FAILED), "response")
        raise _CutError

    async def _let_others_run(self) -> None:
        """Let other tasks run now and then: one piece can have thousands of parts, none of which waits."""
        self._parts += 1
        if self._parts % PARTS == 0:
            await asyncio.sleep(0)

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Count the bytes that wait in this connection for further bytes."""
        kept = len(self._first) + (0 if self._early is None else len(self._early.held)) + (0 if self._http is None else self._http.incomplete_bytes)
        if not self._stream.keep(kept):
            raise RefusedError(self._refusal(RefusalReason.LIMIT_EXCEEDED))

    async def _receive(self) -> bytes:
        """Return the next bytes of the program; none at the end."""
        self._keep()
        while not self._program_ended:
            try:
                data = await anext(self._stream)
            except StopAsyncIteration:
                self._program_ended = True
                return b""
            if not isinstance(data, bytes):
                raise _CutError  # a message of the link, which is not part of a connection
            if data:
                return data
        return b""

    async def _send(self, data: bytes) -> None:
        """Send bytes to the server."""
        if not data or self._socket is None or self._traffic is None or self._is_broken:
            return
        if self._access.rate is not None:
            await self._access.rate.take(len(data))
        try:
            await self._loop.sock_sendall(self._socket, data)
        except OSError:
            self._is_broken = True  # what the server has sent before is still passed on
            return
        self._access.activity.add_bytes(self._traffic, sent=len(data))

    async def _read(self) -> bytes:
        """Return the next bytes of the server; none at the end."""
        self._keep()
        room = await self._stream.wait_for_room()
        data = b""
        try:
            if self._socket is not None:
                data = await self._read_socket(self._socket, min(READ_BYTES, room))
        except OSError:
            self._is_broken = True
        if not data and self._is_broken:
            if self._http is not None and not self._http.is_upgraded:
                if not self._http.is_waiting:  # the response is complete
                    raise _OverError
                self._fail_response(self._http)
            raise _CutError
        return data

    async def _read_socket(self, connected: socket.socket, max_bytes: int) -> bytes:
        while True:
            try:
                async with asyncio.timeout(HALF_CLOSED_S):
                    return await self._loop.sock_recv(connected, max_bytes)
            except TimeoutError:
                if self._program_ended:
                    raise _CutError from None

    async def _write(self, data: bytes) -> None:
        """Send bytes to the program."""
        if not data or self._traffic is None:
            return
        if self._access.rate is not None:
            await self._access.rate.take(len(data))
        await self._stream.write(data)
        self._access.activity.add_bytes(self._traffic, received=len(data))

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _tell(self, refusal: Refusal) -> None:
        """Tell the program of a refusal in its protocol."""
        if self._protocol == "incomplete" and self._is_http_port():
            with suppress(TimeoutError, RefusedError, _CutError):
                async with asyncio.timeout(FIRST_BYTES_S):
                    await self._recognise()
        if self._protocol == "http" and not self._server_spoke and (self._http is None or self._http.awaits_response):
            is_head = self._first.startswith(_HEAD) if self._request is None else self._request.method == b"HEAD"
            await self._stream.write(http_response(refusal, to_head=is_head))
        elif (
            (isinstance(self._protocol, ClientHello) or self._protocol == "malformed_tls")
            and (not self._server_spoke or self._response == "retry")
            and refusal.status == _FORBIDDEN
        ):
            await self._stream.write(ACCESS_DENIED_ALERT)
        else:
            self._stream.reset("forbidden", "The connection was refused.")

    def _close(self) -> None:
        if self._socket is not None:
            if not self._is_clean:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.close()


def _reason_of(error: h11.RemoteProtocolError) -> RefusalReason:
    """Return the reason for which a malformed request is refused."""
    return RefusalReason.HTTP_HOST_MISMATCH if "Host:" in str(error) else RefusalReason.PROTOCOL_NOT_SUPPORTED
