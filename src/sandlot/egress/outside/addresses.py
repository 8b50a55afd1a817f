"""Which addresses somebody who is not trusted may have this host speak to. Pure.

Laws:
- Only global unicast addresses are public: what is for special purposes is not (RFC 6890 and its registries), nor what carries another address
  inside (IPv4-mapped, NAT64, 6to4, Teredo), nor where clouds tell their guests secrets.
- An operator's networks go before all of that.
- What a URL says is decided without a look at the network; what its name stands for is decided once more for each address that is spoken to.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import httpx

from sandlot.model.errors import InvalidRequestError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_BYTES: Final = 2048
PORTS: Final = frozenset({80, 443})
"""Below :data:`USERS_PORTS`, those that are there to be spoken HTTP to."""
USERS_PORTS: Final = 1024
"""From there on anybody's (RFC 6335, 6: the system ports are below)."""

_NAME: Final = re.compile(r"[a-z0-9._-]{1,253}")
_SCHEMES: Final = {"http": 80, "https": 443}
_UNICAST: Final = ip_network("2000::/3")
"""All of IPv6 that is global unicast (RFC 4291, 2.4); Python's ``is_global`` is true of what nobody has as well."""
_NOT: Final[tuple[Network, ...]] = (
    ip_network("192.88.99.0/24"),  # relays of 6to4 (RFC 7526)
    ip_network("168.63.129.16/32"),  # Azure's host, for its guests alone
    ip_network("2001::/23"),  # for the IETF's protocols: Teredo, ORCHID and others carry something else
    ip_network("2002::/16"),  # 6to4: an IPv4 address inside
    ip_network("2001:db8::/32"),  # documentation, as are the next
    ip_network("3fff::/20"),
)


def is_public(address: Address) -> bool:
    """Whether an address is everybody's to speak to.

    Args:
        address: As the system would connect to it; a zone makes it none.
    """
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address not in _UNICAST):
        return False
    special = address.is_multicast or address.is_reserved or address.is_private or not address.is_global
    return not special and not _among(address, _NOT)


def is_allowed(address: Address, allow: Collection[Network]) -> bool:
    """Whether an address may be spoken to: it is public, or in one of the operator's networks."""
    return is_public(address) or _among(address, allow)


def check_url(url: str, allow: Collection[Network] = ()) -> httpx.URL:
    """A URL that may be spoken to, as far as it can be told without a look at the network.

    Args:
        url: It.
        allow: The operator's networks.

    Raises:
        InvalidRequestError: It is none, or one that is never spoken to; says why.
    """
    if len(url.encode("utf-8", "replace")) > MAX_URL_BYTES:
        raise _refused(f"The URL has more than {MAX_URL_BYTES} bytes.")
    try:
        parsed = httpx.URL(url)
        host = host_of(parsed)
    except (httpx.InvalidURL, ValueError):
        raise _refused("The URL is not one.") from None
    if parsed.scheme not in _SCHEMES or not host:
        raise _refused("The URL does not begin with http:// or https:// and a host.")
    literal = address_of(host)
    if literal is None and _NAME.fullmatch(host) is None:
        raise _refused("The URL's host is not one.")
    if parsed.userinfo or parsed.fragment:
        raise _refused("The URL has a user name or a fragment.")
    if host.rstrip(".") == "localhost" or host.rstrip(".").endswith(".localhost"):  # RFC 6761, 6.3
        literal = ip_address("127.0.0.1")
    if literal is not None and not is_allowed(literal, allow):
        raise _refused(f"{host} is not a public address.")
    if not is_port_allowed(port_of(parsed)) and not (literal is not None and _among(literal, allow)):
        raise _refused(f"Port {port_of(parsed)} is not for HTTP.", f"Use 80, 443, or one from {USERS_PORTS} on.")
    return parsed


def host_of(url: httpx.URL) -> str:
    """The host of a URL in ASCII, as name servers and certificates have it."""
    return url.raw_host.decode("ascii").lower()


def port_of(url: httpx.URL) -> int:
    """The port that a URL means."""
    return url.port if url.port is not None else _SCHEMES[url.scheme]


def is_port_allowed(port: int) -> bool:
    """Whether a port may be spoken HTTP to, of any public address."""
    return port in PORTS or USERS_PORTS <= port < 1 << 16


def address_of(host: str) -> Address | None:
    """The address that a URL's host is; None where it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _among(address: Address, networks: Collection[Network]) -> bool:
    return any(address in network for network in networks)  # of another version it never is


def _refused(message: str, hint: str = "Give an http or https URL of a host on the internet.") -> InvalidRequestError:
    return InvalidRequestError(message, hint=hint, fields={"field": "url"})
