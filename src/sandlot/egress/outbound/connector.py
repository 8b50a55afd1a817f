"""Name lookups and connections to hosts that sandboxes and tenants chose.

Invariants:
- A connection goes only to an address that was checked. A name server therefore cannot direct it to a forbidden address by another response to a
  second lookup.
- Names are looked up as absolute names: neither the search domains nor the hosts file of this machine give a tenant's name another meaning.
- One consumer, such as a sandbox, has at most ``LOOKUPS`` lookups at once, and further ones wait (``lookup_shares.py``). The cache holds at most
  ``CACHED_NAMES`` names.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

import aiohappyeyeballs

from sandlot.egress.outbound.lookup_shares import LookupShares
from sandlot.egress.policy.addresses import Address, Network, is_reachable
from sandlot.model.network_activity import RefusalReason

MAX_ADDRESSES: Final = 8
"""Maximum number of addresses of one name that are tried."""
ATTEMPT_DELAY_S: Final = 0.25
"""Seconds after which the next address is tried while an attempt is still in progress (RFC 8305, 8)."""
CONNECT_S: Final = 10.0
LOOKUP_S: Final = 10.0
LOOKUP_THREADS: Final = 64
"""Maximum number of names that are looked up at once.

A name server that never responds blocks a thread for half a minute. Lookups therefore have their own threads, and a caller that reaches its time
limit does not wait for its lookup.
"""
LOOKUPS: Final = 16
"""Maximum number of lookups of one consumer at once."""
CACHED_NAMES: Final = 4096
FOUND_S: Final = 30.0
"""Seconds for which the addresses of a name are kept. The system's resolver does not report the time to live of a record."""
NOT_FOUND_S: Final = 5.0
"""Seconds for which the absence of a name is cached."""

_ABSENT: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_ADDRFAMILY})
"""Errors of the resolver that mean that the name has no address. The other ones mean that the lookup has failed."""

Resolve = Callable[[str], Awaitable[Sequence[Address]]]
"""Resolves a host name to addresses. Raises ``socket.gaierror`` like :func:`socket.getaddrinfo`."""


class ConnectionFailedError(Exception):
    """A host was not found, may not be reached, or cannot be connected to.

    Args:
        reason: Reason, which says nothing about this machine or its network.
    """

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(str(reason))
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Cached:
    """Result of a lookup. No address: the name does not exist."""

    addresses: tuple[Address, ...]
    until_s: float


class Connector:
    """Resolves names, checks addresses and connects. It must be closed after use.

    Args:
        private: Networks that may be reached although their addresses are not public.
        resolve: Resolves host names. None: the machine's resolver.
        is_own: Returns whether an address belongs to this machine; such addresses are refused if ``private`` does not list them one by one. None:
            :func:`is_own_address`.
        now: Clock in seconds.
    """

    def __init__(
        self,
        private: Collection[Network] = (),
        *,
        resolve: Resolve | None = None,
        is_own: Callable[[Address], bool] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.private = tuple(private)
        """Networks that may be reached although their addresses are not public."""
        self._resolve = resolve or self._look_up
        self._is_own = is_own or is_own_address
        self._now = now
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "outbound-names")
        self._cache: dict[tuple[str, str], _Cached] = {}
        self._shares = LookupShares(LOOKUP_THREADS, LOOKUPS)
        self._lookups: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Running lookups by consumer and name. Requests for the same name wait for one lookup."""

    def close(self) -> None:
        """Stop lookups without waiting for those in progress. Idempotent."""
        for lookup in self._lookups.values():
            lookup.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def resolve(self, host: str | Address, consumer: str = "") -> Sequence[Address]:
        """Return the addresses of a host that may be reached: at least 1, at most ``MAX_ADDRESSES``.

        Args:
            host: Canonical name, or address.
            consumer: Sandbox or feature that the limits and the cache entries belong to.

        Raises:
            ConnectionFailedError: The name does not exist or cannot be looked up, the lookup has waited too long for others of the consumer, or no
                address may be reached.
        """
        found = await self._find(host, consumer) if isinstance(host, str) else (host,)
        allowed = [address for address in found if is_reachable(address, self.private, self._is_own)]
        if not allowed:
            raise ConnectionFailedError(RefusalReason.ADDRESS_NOT_PUBLIC if found else RefusalReason.NAME_NOT_FOUND)
        return allowed[:MAX_ADDRESSES]

    async def connect(self, addresses: Sequence[Address], port: int) -> socket.socket:
        """Connect to the first of several checked addresses that accepts, and return the non-blocking socket. The caller closes the socket.

        Raises:
            ConnectionFailedError: No address has accepted the connection within ``CONNECT_S``.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                return await aiohappyeyeballs.start_connection(
                    [_address_info(address, port) for address in addresses], happy_eyeballs_delay=ATTEMPT_DELAY_S
                )
        except OSError:  # a TimeoutError is one
            raise ConnectionFailedError(RefusalReason.UPSTREAM_FAILED) from None

    async def _find(self, name: str, consumer: str) -> Sequence[Address]:
        """Return all addresses of a name: none if the name does not exist."""
        reason = RefusalReason.UPSTREAM_FAILED
        try:
            async with asyncio.timeout(LOOKUP_S):
                while (cached := self._cached(name, consumer)) is None:
                    lookup = self._lookups.get((consumer, name))
                    if lookup is None:
                        reason = RefusalReason.LIMIT_EXCEEDED
                        await self._shares.acquire(consumer)
                        reason = RefusalReason.UPSTREAM_FAILED
                        lookup = self._start_lookup(name, consumer)
                    await asyncio.shield(lookup)
                return cached
        except OSError:  # of the resolver, or a TimeoutError
            raise ConnectionFailedError(reason) from None

    def _cached(self, name: str, consumer: str) -> Sequence[Address] | None:
        cached = self._cache.get((consumer, name))
        return None if cached is None or self._now() >= cached.until_s else cached.addresses

    def _start_lookup(self, name: str, consumer: str) -> asyncio.Task[None]:
        """Start a lookup, or return the one that others have started meanwhile. The share of the consumer is released when the lookup has ended.

        The lookup continues after its caller has given up, because its thread is blocked until then.
        """
        running = self._lookups.get((consumer, name))
        if running is not None:
            self._shares.release(consumer)
            return running
        lookup = self._lookups[consumer, name] = asyncio.create_task(self._look_up_once(name, consumer), name="outbound-lookup")
        lookup.add_done_callback(lambda _: self._end_lookup(name, consumer, lookup))
        return lookup

    def _end_lookup(self, name: str, consumer: str, lookup: asyncio.Task[None]) -> None:
        self._shares.release(consumer)
        del self._lookups[consumer, name]
        if not lookup.cancelled():
            lookup.exception()  # every caller may have given up

    async def _look_up_once(self, name: str, consumer: str) -> None:
        """Look up a name, and cache its addresses or its absence."""
        try:
            addresses = tuple(await self._resolve(name))
        except socket.gaierror as error:
            if error.errno not in _ABSENT:
                raise
            addresses = ()
        self._cache.pop((consumer, name), None)
        while len(self._cache) >= CACHED_NAMES:
            del self._cache[next(iter(self._cache))]
        self._cache[consumer, name] = _Cached(addresses, self._now() + (FOUND_S if addresses else NOT_FOUND_S))

    async def _look_up(self, name: str) -> Sequence[Address]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, _look_up, name)


def is_own_address(address: Address) -> bool:
    """Return whether an address belongs to this machine. Nothing is sent.

    In connect(2) of a datagram socket, the kernel only chooses the source address of the socket. If the target is an address of this machine, the
    kernel chooses the target's address as the source. Loopback addresses and the unspecified address, which Linux connects to the loopback address,
    have another source.
    """
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if address.is_loopback or address.is_unspecified or (mapped is not None and (mapped.is_loopback or mapped.is_unspecified)):
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - the version of the protocol
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
            return str(probe.getsockname()[0]) == str(address)
        except OSError:
            return False  # this machine has no route to the address


def _address_info(address: Address, port: int) -> tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]:
    if isinstance(address, IPv6Address):
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (str(address), port)


def _look_up(name: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label that the DNS cannot contain
        return []
    return list(dict.fromkeys(ip_address(sockaddr[0]) for *_, sockaddr in found))
