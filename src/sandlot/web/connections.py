"""Shares of the connections of a listener: one for each peer address, one for each API key.

A connection counts towards the address of its peer until a request on it has a valid key, and then towards the key. Connections of a trusted proxy
count towards neither until a request arrives, which counts towards the address that the proxy forwards, and then towards its key.

Invariants:
- At most ``max_connections`` are open. No address and no key has more than its share; the rest is kept for others.
- When a share is used up, or all connections are open, a connection without a key is closed in favour of the new one: idle ones first, then the
  oldest. Idle connections with a key follow. A connection with a key that is in use is never closed: the new connection or request is refused.
- A connection that is refused because of its key counts towards no share, and is closed before all others: the refusal waits for ``RETRY_AFTER_S``,
  because a client that connects again at once would keep the service busy.
- The first ``GRACE_S`` of a connection are its own, because a burst of connections is accepted before the first request of any is read. While only
  such connections have no key, a further one is refused and no connection with a key is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from sandlot.model.access import OwnerId
from sandlot.model.errors import ErrorCode, UnavailableError

SHARES: Final = 4
"""A share is the limit of connections divided by this number."""
GRACE_S: Final = 0.1
RETRY_AFTER_S: Final = 1
MAX_HOPS: Final = 16
"""Largest number of entries of X-Forwarded-For that are read, from the right."""

CONNECTION = "connection"
"""Key in the state of a request: its :class:`Connection`, or absent."""

Network = IPv4Network | IPv6Network
Holder = tuple[str, str]
"""Owner of a share: ``("address", ADDRESS)`` or ``("key", OWNER)``."""


class Connection:
    """One open connection.

    Args:
        shares: Shares that the connection counts towards.
        address: Address of the peer; empty if the peer has none.
        close: Closes the connection at once.
        opened_s: Time of the clock of ``shares``.
    """

    __slots__ = ("_address", "_is_proxy", "_shares", "close", "holder", "in_use", "is_refused", "opened_s")

    def __init__(self, shares: ConnectionShares, address: str, close: Callable[[], None], opened_s: float) -> None:
        self._shares = shares
        self._address = address
        self._is_proxy = shares.is_trusted(address)
        self.close = close
        self.opened_s = opened_s
        self.holder: Holder | None = None if self._is_proxy else ("address", address_holder(address))
        self.in_use = False
        """True while a request is answered or a WebSocket is open."""
        self.is_refused = False
        """True if the share of its key was used up."""

    @property
    def is_anonymous(self) -> bool:
        """True if the connection has no key and does not come from a trusted proxy."""
        return not self._is_proxy and (self.holder is None or self.holder[0] != "key")

    def begin_request(self) -> None:
        """Record that a request has arrived."""
        self._shares.change(self, in_use=True)

    def end_request(self) -> None:
        """Record that the last request was answered. The next request of a trusted proxy may be that of another client."""
        self._shares.change(self, in_use=False)
        if self._is_proxy:
            self._shares.move(self, None)

    def count_for_address(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Count a request of a trusted proxy towards the address that the proxy forwards. Other connections count already.

        Raises:
            UnavailableError: The share of the address is used up (``busy``).
        """
        if self._is_proxy:
            values = [value for name, value in headers if name == b"x-forwarded-for"]
            self._shares.move(self, ("address", address_holder(forwarded_address(self._address, values, self._shares.trusted_proxies))))

    def count_for_key(self, owner: OwnerId) -> None:
        """Count the connection towards a key from now on.

        Raises:
            UnavailableError: The share of the key is used up (``busy``). The connection counts towards no share then.
        """
        try:
            self._shares.move(self, ("key", owner))
        except UnavailableError:
            if not self._is_proxy:  # the next request may be that of another client
                self._shares.refuse(self)
            raise

    def lost(self) -> None:
        """Give the place of the connection back."""
        self._shares.remove(self)


class ConnectionShares:
    """The open connections of one kind of listener.

    Args:
        max_connections: Largest number of open connections.
        now_s: Clock, in seconds.
        shared: False gives every address and key all connections, for a listener whose clients are one user.
        trusted_proxies: Networks of proxies whose forwarded addresses count.
    """

    def __init__(self, max_connections: int, now_s: Callable[[], float], *, shared: bool = True, trusted_proxies: Sequence[Network] = ()) -> None:
        self.max_connections = max_connections
        self.share = max(1, max_connections // SHARES) if shared else max_connections
        self.trusted_proxies = trusted_proxies
        self._now_s = now_s
        # Dictionaries as ordered sets: the oldest comes first.
        self._open: dict[Connection, None] = {}
        self._held: dict[Holder, dict[Connection, None]] = {}
        self._closable: tuple[dict[Connection, None], ...] = ({}, {}, {}, {})
        """Refused ones, idle ones without a key, others without a key, and idle ones with a key, which include those of trusted proxies."""

    def is_trusted(self, address: str) -> bool:
        """Return True if an address is that of a trusted proxy."""
        return bool(self.trusted_proxies) and _is_trusted(_parse(address), self.trusted_proxies)

    def count(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def count_of_key(self, owner: OwnerId) -> int:
        """Return the number of connections that count towards a key."""
        return len(self._held.get(("key", owner), ()))

    def open(self, address: str, close: Callable[[], None]) -> Connection:
        """Admit a connection.

        Args:
            address: Address of the peer; empty if the peer has none.
            close: Closes the connection at once. It is called to make room for another connection.

        Raises:
            UnavailableError: The share of the address is used up, or all connections are open and none can be closed (``busy``).
        """
        made = Connection(self, address, close, self._now_s())
        if made.holder is not None:
            self._make_room(made.holder)
        if len(self._open) >= self.max_connections and not self._close_one(*self._closable):
            raise _refusal(
                f"All {self.max_connections} connections of the service are open.",
                "Close unused connections, or retry later. An operator can raise SANDLOT_MAX_CONNECTIONS.",
            )
        self._open[made] = None
        self._hold(made)
        return made

    def move(self, connection: Connection, holder: Holder | None) -> None:
        """Count a connection towards another share.

        Raises:
            UnavailableError: The share is used up (``busy``). The connection counts as before.
        """
        if connection.holder == holder or connection not in self._open:
            return
        if holder is not None:
            self._make_room(holder)
        self._release(connection)
        connection.holder, connection.is_refused = holder, False
        self._hold(connection)

    def change(self, connection: Connection, *, in_use: bool) -> None:
        """Record whether a connection is in use."""
        if connection.in_use == in_use or connection not in self._open:
            return
        self._make_unclosable(connection)
        connection.in_use = in_use
        self._make_closable(connection)

    def refuse(self, connection: Connection) -> None:
        """Record that a connection is refused, and count it towards no share."""
        if connection in self._open:
            self._release(connection)
            connection.holder, connection.is_refused = None, True
            self._make_closable(connection)

    def remove(self, connection: Connection) -> None:
        """Give the place of a connection back. Nothing happens for a connection that was removed before."""
        if connection in self._open:
            del self._open[connection]
            self._release(connection)

    def _make_room(self, holder: Holder) -> None:
        members = self._held.get(holder, {})
        if len(members) < self.share:
            return
        if self._close_one(*(filter(closable.__contains__, members) for closable in self._closable)):
            return
        kind, _ = holder
        if kind == "key":
            raise _refusal(
                f"This API key has {self.share} connections in use, its share of the service's connections.",
                "Wait for running requests, or close streams and WebSockets. An operator can raise SANDLOT_MAX_CONNECTIONS.",
            )
        raise _refusal(
            f"This address has opened {self.share} connections without an API key, its share of the service's connections.",
            "Send a request with a key on each connection soon. Behind a proxy, an operator must set SANDLOT_TRUSTED_PROXIES.",
        )

    def _close_one(self, *kinds: Iterable[Connection]) -> bool:
        """Close the oldest connection of the first kind that has one that may be closed. The last kind counts only if the others are empty."""
        oldest = [next(iter(kind), None) for kind in kinds]
        for each in oldest[:-1] if any(oldest[:-1]) else oldest:
            if each is not None and self._now_s() - each.opened_s >= GRACE_S:
                self.remove(each)
                each.close()
                return True
        return False

    def _hold(self, connection: Connection) -> None:
        if connection.holder is not None:
            self._held.setdefault(connection.holder, {})[connection] = None
        self._make_closable(connection)

    def _make_closable(self, connection: Connection) -> None:
        if connection.is_refused:
            self._closable[0][connection] = None
        elif connection.is_anonymous:
            self._closable[2 if connection.in_use else 1][connection] = None
        elif not connection.in_use:
            self._closable[3][connection] = None

    def _make_unclosable(self, connection: Connection) -> None:
        for kind in self._closable:
            kind.pop(connection, None)

    def _release(self, connection: Connection) -> None:
        self._make_unclosable(connection)
        if connection.holder is not None and (members := self._held.get(connection.holder)) is not None:
            members.pop(connection, None)
            if not members:
                del self._held[connection.holder]


def address_holder(address: str) -> str:
    """Return the name under which an address is counted: an IPv4 address, or the /64 network of an IPv6 address. Pure."""
    parsed = _parse(address)
    return str(IPv6Network((int(parsed) >> 64 << 64, 64))) if isinstance(parsed, IPv6Address) else address if parsed is None else str(parsed)


def forwarded_address(peer: str, values: Sequence[bytes], trusted: Sequence[Network]) -> str:
    """Return the address of the client of a trusted proxy: the right-most entry of X-Forwarded-For that is not a trusted proxy itself. Pure.

    An entry that is not an address, and everything to its left, does not count: anybody may have written it. Then the address is that of the
    proxy to its right.

    Args:
        peer: Address of the trusted proxy that is connected.
        values: Values of the header, in order.
        trusted: Networks of trusted proxies.
    """
    found = peer
    for entry in b",".join(values).rsplit(b",", MAX_HOPS)[: -MAX_HOPS - 1 : -1]:
        parsed = _parse(entry.strip().decode("latin-1"))
        if parsed is None:
            break
        found = str(parsed)
        if not _is_trusted(parsed, trusted):
            break
    return found


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    """Return an address; an IPv4 address that is written as an IPv6 address becomes the IPv4 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return (parsed.ipv4_mapped or parsed) if isinstance(parsed, IPv6Address) else parsed


def _is_trusted(address: IPv4Address | IPv6Address | None, trusted: Sequence[Network]) -> bool:
    return address is not None and any(address in network for network in trusted)


def _refusal(message: str, hint: str) -> UnavailableError:
    return UnavailableError(message, code=ErrorCode.BUSY, hint=hint, fields={"retry_after_s": RETRY_AFTER_S})
