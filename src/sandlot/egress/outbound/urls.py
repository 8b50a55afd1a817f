"""URLs that tenants choose: their form, scheme, host and port. Pure.

A URL is checked without network access. Before the HTTP client connects, it checks the addresses that the host name in the URL resolves to.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import httpx

from sandlot.egress.policy.addresses import Network, in_any, is_allowed
from sandlot.egress.policy.destinations import parse_host
from sandlot.model.errors import InvalidRequestError

MAX_URL_BYTES: Final = 2048
SYSTEM_PORTS: Final = frozenset({80, 443})
"""Ports below :data:`FIRST_USER_PORT` that requests may use."""
FIRST_USER_PORT: Final = 1024
"""First port above the system ports (RFC 6335, 6). Requests may use this port and all higher ports."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def check_url(url: str, allow: Collection[Network] = ()) -> httpx.URL:
    """Parse a URL that a tenant chose, and check its length, scheme, host and port. Host names are not looked up.

    Args:
        url: The URL.
        allow: Networks that the operator allows although their addresses are not public.

    Raises:
        InvalidRequestError: The URL is malformed or forbidden; the message says why.
    """
    if len(url.encode("utf-8", "replace")) > MAX_URL_BYTES:
        raise _invalid(f"The URL has {len(url.encode('utf-8', 'replace'))} bytes, more than {MAX_URL_BYTES}.")
    try:
        parsed = httpx.URL(url)
        host = host_of(parsed)
        parsed_host = parse_host(host) if host else ""
    except (httpx.InvalidURL, ValueError):
        raise _invalid("The URL is malformed.") from None
    if parsed.scheme not in _DEFAULT_PORTS or not host:
        raise _invalid(f"The URL must begin with http:// or https:// and a host; its scheme is {parsed.scheme[:16]!r}, its host {host[:64]!r}.")
    if parsed.userinfo or parsed.fragment:
        raise _invalid(f"The URL has a {'user name or password' if parsed.userinfo else 'fragment'}.", "Remove this part of the URL.")
    literal = None if isinstance(parsed_host, str) else parsed_host
    if literal is not None and not is_allowed(literal, allow):
        raise _invalid(f"The host {host} of the URL is not a public address.")
    if not is_port_allowed(port_of(parsed)) and not (literal is not None and in_any(literal, allow)):
        raise _invalid(f"Port {port_of(parsed)} is not allowed.", f"Use port 80, port 443, or a port from {FIRST_USER_PORT} on.")
    return parsed


def host_of(url: httpx.URL) -> str:
    """Return the host of a URL in lower-case ASCII, the form that is used in DNS and in certificates."""
    return url.raw_host.decode("ascii").lower()


def port_of(url: httpx.URL) -> int:
    """Return the port of a URL, or the default port of the scheme if the URL names no port."""
    return url.port if url.port is not None else _DEFAULT_PORTS[url.scheme]


def is_port_allowed(port: int) -> bool:
    """Return whether requests to public addresses may use a port."""
    return port in SYSTEM_PORTS or FIRST_USER_PORT <= port < 1 << 16


def _invalid(message: str, hint: str = "Pass an http or https URL of a host on the internet.") -> InvalidRequestError:
    return InvalidRequestError(message, hint=hint, fields={"field": "url"})
