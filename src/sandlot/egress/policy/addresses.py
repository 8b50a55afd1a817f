"""Addresses that sandboxes and tenants may reach. Pure.

Invariants:
- Only global unicast addresses are public. These addresses are not public: special-purpose addresses (RFC 6890 and its registries), addresses that
  embed another address (IPv4-mapped, NAT64, 6to4, Teredo), and metadata addresses of clouds.
- Addresses in private networks, which the operator lists, may be reached even if they are not public.
- An address of this host may be reached only if the operator lists this one address.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_IPV6_UNICAST: Final = ip_network("2000::/3")
"""Global unicast IPv6 addresses (RFC 4291, 2.4). Checked in addition to Python's ``is_global``, which is also true for unassigned addresses."""
_NOT_PUBLIC: Final[tuple[Network, ...]] = (
    ip_network("192.88.99.0/24"),  # 6to4 relays (RFC 7526)
    ip_network("168.63.129.16/32"),  # service of Azure that only its virtual machines can reach
    ip_network("2001::/23"),  # IETF protocols: Teredo, ORCHID and others embed other addresses or keys
    ip_network("2002::/16"),  # 6to4: embeds an IPv4 address
    ip_network("2001:db8::/32"),  # documentation (RFC 3849)
    ip_network("3fff::/20"),  # documentation (RFC 9637)
)

_PRIVATE_USE: Final = tuple(map(ip_network, ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")))
"""Networks of which no part may be in a network of public addresses."""


def is_public(address: Address) -> bool:
    """Return whether an address is a public address of the internet.

    Args:
        address: The address to connect to. An IPv6 address with a zone (``%eth0``) is not public.
    """
    if isinstance(address, IPv6Address) and (address.scope_id is not None or address not in _IPV6_UNICAST):
        return False
    special = address.is_multicast or address.is_reserved or address.is_private or not address.is_global
    return not special and not in_any(address, _NOT_PUBLIC)


def is_allowed(address: Address, private: Collection[Network]) -> bool:
    """Return whether an address is public or in one of the private networks. Addresses of this host are not considered."""
    return is_public(address) or in_any(address, private)


def is_reachable(address: Address, private: Collection[Network], is_own: Callable[[Address], bool]) -> bool:
    """Return whether a sandbox or a tenant may reach an address.

    Args:
        address: The address to connect to.
        private: Networks that the operator allows although their addresses are not public.
        is_own: Returns whether an address belongs to this host.
    """
    if any(network.prefixlen == network.max_prefixlen and address in network for network in private):
        return True
    return is_allowed(address, private) and not is_own(address)


def is_reachable_network(network: Network, private: Collection[Network], is_own: Callable[[Address], bool]) -> bool:
    """Return whether a sandbox or a tenant may name a network as a destination. Each address is checked again before a connection.

    A network with several addresses is public if its first and its last address are public and the network overlaps no network for private use.

    Args:
        network: A single address, or several addresses.
        private: Networks that the operator allows although their addresses are not public.
        is_own: Returns whether an address belongs to this host.
    """
    if network.prefixlen == network.max_prefixlen:
        return is_reachable(network.network_address, private, is_own)
    if any(network[0] in each and network[-1] in each for each in private):
        return True
    return is_public(network[0]) and is_public(network[-1]) and not any(network.overlaps(each) for each in _PRIVATE_USE)


def in_any(address: Address, networks: Collection[Network]) -> bool:
    """Return whether an address is in one of several networks. An address is never in a network of the other version of IP."""
    return any(address in network for network in networks)
