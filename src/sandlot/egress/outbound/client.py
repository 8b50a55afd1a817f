"""HTTP client for URLs that tenants chose. A call sends one request and returns the status of the response.

Invariants:
- The client resolves each name once, checks the addresses and connects to a checked address. A name server therefore cannot direct the connection to
  a forbidden address by another response to a second lookup. TLS verifies the certificate for the name, as usual.
- Redirects are not followed.
- No proxy, cookie or credential of this machine is used. Each request has its own connection.
- A call takes at most :data:`CALL_S`, and at most :data:`READ_BYTES` of the response are read.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import certifi
import httpx

from sandlot.egress.outbound.urls import address_of, check_url, host_of, port_of
from sandlot.egress.policy.addresses import Address, Network, is_allowed
from sandlot.model.errors import ErrorCode, ForbiddenError, TimeoutExceededError, UnavailableError

CALL_S: Final = 10.0
"""Seconds that a call may take: name lookup, connection, request and response."""
READ_BYTES: Final = 64 * 1024
MAX_ADDRESSES: Final = 3
"""Maximum number of addresses of one name that are tried."""
LOOKUP_THREADS: Final = 64
"""Maximum number of names that are looked up at once.

A name server that never responds blocks a thread for half a minute. Lookups therefore have their own threads, and a call that reaches its time limit
does not wait for its lookup.
"""

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Resolves a host name and a port to addresses. Raises OSError if the name does not exist."""


class OutboundHttpClient:
    """Sends requests to URLs that tenants chose. It must be closed after use.

    Args:
        allow: Networks that requests may go to although their addresses are not public.
        resolve: Resolves host names. None: the machine's resolver.
        is_own: Returns whether an address belongs to this machine; such addresses are forbidden if ``allow`` does not contain them. None:
            :func:`is_own_address`.
    """

    def __init__(self, allow: Collection[Network] = (), *, resolve: Resolve | None = None, is_own: Callable[[Address], bool] | None = None) -> None:
        self._allow = tuple(allow)
        self._resolve = resolve or self._look_up
        self._is_own = is_own or is_own_address
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "outbound-names")
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def aclose(self) -> None:
        """Close the client without waiting for name lookups in progress. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._transport is not None:
            await self._transport.aclose()

    def check(self, url: str) -> None:
        """Raise an error if the address policy forbids a URL. No network access.

        Raises:
            InvalidRequestError: The URL is malformed or forbidden.
        """
        check_url(url, self._allow)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send a POST request and return the status of the response.

        Args:
            url: URL to send the request to.
            body: Body of the request.
            headers: Headers of the request. ``Host`` and ``Content-Length`` are added.

        Raises:
            InvalidRequestError: The URL is malformed or forbidden.
            ForbiddenError: The host has no address that requests may go to.
            UnavailableError: The host cannot be reached or does not speak HTTP.
            TimeoutExceededError: The call took longer than :data:`CALL_S`.
        """
        parsed = check_url(url, self._allow)
        try:
            async with asyncio.timeout(CALL_S):
                addresses = await self._addresses(parsed)
                for address in addresses[:-1]:
                    with suppress(httpx.ConnectError):
                        return await self._send(parsed, address, body, headers)
                return await self._send(parsed, addresses[-1], body, headers)
        except (TimeoutError, httpx.TimeoutException):
            raise TimeoutExceededError(f"{host_of(parsed)} did not respond within {CALL_S:g} s.", code=ErrorCode.TIMEOUT) from None
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise UnavailableError(_failure(host_of(parsed), error), code=ErrorCode.SERVICE_UNAVAILABLE) from None

    async def _addresses(self, url: httpx.URL) -> Sequence[Address]:
        """Return the addresses of a URL's host that requests may go to: at least 1, at most :data:`MAX_ADDRESSES`.

        Raises:
            ForbiddenError: The name does not exist, or requests may go to none of its addresses. The message does not say which of the two, so that
                tenants cannot find out which internal names exist.
        """
        host = host_of(url)
        literal = address_of(host)
        try:
            found = [literal] if literal is not None else await self._resolve(host, port_of(url))
        except OSError:
            found = []
        allowed = [address for address in found if self._is_allowed(address)]
        if not allowed:
            raise ForbiddenError(f"{host} has no public address.", code=ErrorCode.FORBIDDEN)
        return allowed[:MAX_ADDRESSES]

    def _is_allowed(self, address: Address) -> bool:
        listed = any(address in network for network in self._allow)
        return listed or (is_allowed(address, ()) and not self._is_own(address))

    async def _look_up(self, host: str, port: int) -> Sequence[Address]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port)

    async def _send(self, url: httpx.URL, address: Address, body: bytes, headers: Mapping[str, str]) -> int:
        request = httpx.Request(
            "POST",
            url,
            content=body,
            headers={"User-Agent": "Sandlot", "Accept": "*/*", "Connection": "close", **headers},
            extensions={"sni_hostname": host_of(url), "timeout": dict.fromkeys(("connect", "read", "write", "pool"), CALL_S)},
        )
        request.url = url.copy_with(host=str(address))  # Request() has already set the Host header to the name
        response = await self._open_transport().handle_async_request(request)
        try:
            read = 0
            with suppress(httpx.HTTPError):  # the body is discarded, and the status is already known
                async for piece in response.aiter_raw():
                    read += len(piece)
                    if read >= READ_BYTES:
                        break
            return response.status_code
        finally:
            await response.aclose()

    def _open_transport(self) -> httpx.AsyncHTTPTransport:
        if self._transport is None:
            context = ssl.create_default_context()
            context.load_verify_locations(certifi.where())
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)
        return self._transport


def is_own_address(address: Address) -> bool:
    """Return whether an address belongs to this machine. Nothing is sent.

    In connect(2) of a datagram socket, the kernel only chooses the source address of the socket. If the target is an address of this machine, the
    kernel chooses the target's address as the source.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - the version of the protocol
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0]) == str(address)
        except OSError:
            return False  # this machine has no route to the address


def _look_up(host: str, port: int) -> list[Address]:
    found: dict[Address, None] = {}
    for *_, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = address_of(str(name[0]))
        if address is not None:
            found[address] = None
    return list(found)


def _failure(host: str, error: Exception) -> str:
    """Return an error message for a failed call that reveals nothing about this machine."""
    if isinstance(error, httpx.ConnectError):
        return f"{host} cannot be connected to{': its certificate is not trusted' if 'CERTIFICATE' in str(error) else ''}."
    return f"{host} closed the connection or does not speak HTTP."
