"""Calls to URLs that tenants chose, made by the service itself: one request, one answer's status.

Laws:
- A name is resolved here, and the connection goes to an address that was checked: no second answer of a name server comes between the two. TLS is
  with the name all the same.
- Nothing is followed: a redirect is an answer like any other.
- No proxy, no cookie and no credential of this machine goes along, and no connection is used twice.
- A call takes :data:`CALL_S` at the most, whatever the other end does, and no more of the answer is read than :data:`READ_BYTES`.
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

from sandlot.egress.outside.addresses import Address, Network, address_of, check_url, host_of, is_allowed, port_of
from sandlot.model.errors import ErrorCode, ForbiddenError, TimeoutExceededError, UnavailableError

CALL_S: Final = 10.0
"""For all of a call: finding its address, connecting, sending, and the answer."""
READ_BYTES: Final = 64 * 1024
ADDRESSES: Final = 3
"""Of one name, that are tried."""
RESOLVERS: Final = 64
"""Names that are looked up at once; threads of their own, because a name server that never answers keeps one for half a minute."""

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


class Outside:
    """Calls to the outside. Close it in the end.

    Args:
        allow: Networks that may be spoken to although they are not public.
        resolve: Finds the addresses of a name; by default as the machine does.
        is_own: Whether an address is this machine's own.
    """

    def __init__(self, allow: Collection[Network] = (), *, resolve: Resolve | None = None, is_own: Callable[[Address], bool] | None = None) -> None:
        self._allow = tuple(allow)
        self._resolve = resolve or self._look_up
        self._is_own = is_own or is_own_address
        self._threads = ThreadPoolExecutor(RESOLVERS, "outside-names")
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def aclose(self) -> None:
        """Let everything go. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._transport is not None:
            await self._transport.aclose()

    def check(self, url: str) -> None:
        """Refuse a URL that would never be called; ``invalid_request``."""
        check_url(url, self._allow)

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Send something; the status of the answer.

        Args:
            url: Where.
            body: What.
            headers: Its headers; ``Host`` and the length are added.

        Raises:
            InvalidRequestError: The URL is none that is called.
            ForbiddenError: Its name has no address that may be spoken to.
            UnavailableError: It cannot be reached, or does not speak HTTP.
            TimeoutExceededError: It took too long.
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
            raise TimeoutExceededError(f"{host_of(parsed)} did not answer within {CALL_S:g} s.", code=ErrorCode.TIMEOUT) from None
        except (httpx.HTTPError, ssl.SSLError, OSError) as error:
            raise UnavailableError(_why(host_of(parsed), error), code=ErrorCode.SERVICE_UNAVAILABLE) from None

    async def _addresses(self, url: httpx.URL) -> Sequence[Address]:
        """Those of a URL's host that may be spoken to, at least one.

        Raises:
            ForbiddenError: There is none. Whether the name exists is not said: inside names are nobody's business.
        """
        host = host_of(url)
        literal = address_of(host)
        try:
            found = [literal] if literal is not None else await self._resolve(host, port_of(url))
        except OSError:
            found = []
        fit = [address for address in found if self._may(address)]
        if not fit:
            raise ForbiddenError(f"{host} has no public address.", code=ErrorCode.FORBIDDEN)
        return fit[:ADDRESSES]

    def _may(self, address: Address) -> bool:
        listed = any(address in network for network in self._allow)
        return listed or (is_allowed(address, ()) and not self._is_own(address))

    async def _look_up(self, host: str, port: int) -> Sequence[Address]:
        look = asyncio.get_running_loop().run_in_executor(self._threads, _look_up, host, port)
        return await look

    async def _send(self, url: httpx.URL, address: Address, body: bytes, headers: Mapping[str, str]) -> int:
        request = httpx.Request(
            "POST",
            url,
            content=body,
            headers={"User-Agent": "Sandlot", "Accept": "*/*", "Connection": "close", **headers},
            extensions={"sni_hostname": host_of(url), "timeout": dict.fromkeys(("connect", "read", "write", "pool"), CALL_S)},
        )
        request.url = url.copy_with(host=str(address))  # the Host header is made already, and stays the name
        response = await self._outgoing().handle_async_request(request)
        try:
            read = 0
            with suppress(httpx.HTTPError):  # its status is all that is asked
                async for piece in response.aiter_raw():
                    read += len(piece)
                    if read >= READ_BYTES:
                        break
            return response.status_code
        finally:
            await response.aclose()

    def _outgoing(self) -> httpx.AsyncHTTPTransport:
        if self._transport is None:
            context = ssl.create_default_context()
            context.load_verify_locations(certifi.where())
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            self._transport = httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=limits)
        return self._transport


def is_own_address(address: Address) -> bool:
    """Whether an address is this machine's own: what goes there would come from there. Nothing is sent for that (connect(2), of datagrams)."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - the version of the protocol
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((str(address), 9))
            return str(asking.getsockname()[0]) == str(address)
        except OSError:
            return False  # there is no way to it at all


def _look_up(host: str, port: int) -> list[Address]:
    found: dict[Address, None] = {}
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        address = address_of(str(place[0]))
        if address is not None:
            found[address] = None
    return list(found)


def _why(host: str, error: Exception) -> str:
    """Why a call failed, in words that hold nothing of this machine."""
    if isinstance(error, httpx.ConnectError):
        return f"{host} cannot be connected to{': its certificate is not trusted' if 'CERTIFICATE' in str(error) else ''}."
    return f"{host} broke off, or does not speak HTTP."
