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
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import certifi
import httpx

from sandlot.egress.outbound.connector import ConnectionFailedError, Connector
from sandlot.egress.outbound.urls import check_url, host_of
from sandlot.egress.policy.addresses import Address
from sandlot.egress.policy.destinations import parse_host
from sandlot.model.errors import ErrorCode, ForbiddenError, TimeoutExceededError, UnavailableError
from sandlot.model.network_activity import RefusalReason

CALL_S: Final = 10.0
"""Seconds that a call may take: name lookup, connection, request and response."""
READ_BYTES: Final = 64 * 1024
MAX_ADDRESSES: Final = 3
"""Maximum number of addresses of one name that are tried."""


class OutboundHttpClient:
    """Sends requests to URLs that tenants chose. It must be closed after use.

    Args:
        connector: Resolves the hosts and checks their addresses. The caller closes it.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._transport: httpx.AsyncHTTPTransport | None = None

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        if self._transport is not None:
            await self._transport.aclose()

    def check(self, url: str) -> None:
        """Raise an error if the address policy forbids a URL. No network access.

        Raises:
            InvalidRequestError: The URL is malformed or forbidden.
        """
        check_url(url, self._connector.private)

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
        parsed = check_url(url, self._connector.private)
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
            UnavailableError: The name cannot be looked up.
        """
        try:
            return (await self._connector.resolve(parse_host(host_of(url)), f"webhook {host_of(url)}"))[:MAX_ADDRESSES]
        except ConnectionFailedError as error:
            if error.reason in {RefusalReason.ADDRESS_NOT_PUBLIC, RefusalReason.NAME_NOT_FOUND}:
                raise ForbiddenError(f"{host_of(url)} has no public address.", code=ErrorCode.FORBIDDEN) from None
            raise UnavailableError(f"{host_of(url)} cannot be looked up.", code=ErrorCode.SERVICE_UNAVAILABLE) from None

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


def _failure(host: str, error: Exception) -> str:
    """Return an error message for a failed call that reveals nothing about this machine."""
    if isinstance(error, httpx.ConnectError):
        return f"{host} cannot be connected to{': its certificate is not trusted' if 'CERTIFICATE' in str(error) else ''}."
    return f"{host} closed the connection or does not speak HTTP."
