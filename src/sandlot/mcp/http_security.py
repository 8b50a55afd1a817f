"""Checks of the headers ``Host`` and ``Origin`` against DNS rebinding. Pure.

A page of a stranger can make a browser send requests to a service on the machine of the user, with the stranger's name in ``Host``. Such requests
have no API key, so this is a second line of defence, which the protocol requires (Model Context Protocol, transports, security warning).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

MISDIRECTED, FORBIDDEN = 421, 403


def find_refusal(headers: Iterable[tuple[bytes, bytes]], local_address: str | None, allowed_hosts: Collection[str]) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused; None if it is allowed.

    Args:
        headers: Lower-case names and values, as in an ASGI scope.
        local_address: Address of this machine on which the request arrived. None: the unix socket, which no browser reaches.
        allowed_hosts: Host names of the service, without ports, in lower case. On a loopback address, only these and the names of the loopback
            interface are allowed. Pages of these hosts may send requests.
    """
    if local_address is None:
        return None
    found: dict[bytes, str] = {}
    for header, value in headers:
        if header in {b"host", b"origin"}:
            if header in found:
                return FORBIDDEN, f"The request has two headers {header.decode()}."
            found[header] = value.decode("latin-1").strip().lower()
    host, origin = found.get(b"host", ""), found.get(b"origin")
    name = _host_name(host)
    if _is_loopback(local_address) and not (_is_local_name(name) or name in allowed_hosts):
        return MISDIRECTED, f"The host {name[:100]!r} is not allowed. The operator adds it with SANDLOT_MCP_ALLOWED_HOSTS."
    if origin is None:
        return None
    scheme, _, authority = origin.partition("://")
    if scheme in {"http", "https"} and authority and (authority == host or _host_name(authority) in allowed_hosts):
        return None
    return FORBIDDEN, f"Pages of the origin {origin[:100]!r} may not send requests."


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_local_name(name: str) -> bool:
    return name == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback
