"""The gateway: connects sandboxes to the hosts that their network policies allow.

Invariants:
- One sandbox has at most ``MAX_CONNECTIONS`` connections, of which at most ``MAX_CONNECTS`` are being opened, and all sandboxes together have at most
  ``MAX_TOTAL_CONNECTIONS``. Further ones are refused. Beyond ``OPENS_PER_S``, connections wait to be opened.
- The arguments of a stream come from the guest. Any arguments are a refusal at worst, and no log line has a text of them that was not checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import structlog

from sandlot.egress.gateway.access import Access
from sandlot.egress.gateway.activity import ActivityLog
from sandlot.egress.gateway.dns import TYPES, MakeResolver, look_up, system_resolver
from sandlot.egress.gateway.rate import RateLimit
from sandlot.egress.outbound.connector import Connector
from sandlot.egress.policy.decisions import PolicyDecisions
from sandlot.egress.policy.destinations import Destination, parse_destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.link.services import GuestService, GuestStream
from sandlot.model.network import MAX_NAME_CHARS, NetworkPolicy
from sandlot.model.network_activity import NetworkActivity, NetworkRefusal, RefusalReason
from sandlot.protocol import schema
from sandlot.protocol.schema import MOST_PORT

if TYPE_CHECKING:
    from sandlot.egress.gateway.connection import Connection

MAX_CONNECTIONS: Final = 1024
"""Maximum number of connections of one sandbox."""
MIN_CONNECTIONS: Final = 16
"""Number of connections that a sandbox may have as long as the total allows. Beyond, it has at most half of those that are left for others."""
MAX_LARGE_BUFFERS: Final = 32
"""Number of connections of one sandbox up to which the kernel chooses the size of their buffers.

Buffers that nobody reads grow to megabytes each, and count in a limit of the whole machine (tcp_mem in tcp(7)).
"""
MAX_TOTAL_CONNECTIONS: Final = 16 * 1024
"""Maximum number of connections of all sandboxes. Each has a file descriptor of the service."""
MAX_CONNECTS: Final = 64
"""Maximum number of connections of one sandbox that are being opened. Further ones wait."""
OPENS_PER_S: Final = 200
"""Connections that a sandbox may open in a second, after a burst of ``OPENS_BURST``. Further ones wait: each costs the service a millisecond."""
OPENS_BURST: Final = 1024
REPORT_S: Final = 1.0
"""Least number of seconds between two reports of refusals of one sandbox."""

CHECK_S: Final = 0.002
"""Seconds for which open connections are compared with a new policy before other tasks run: 1,024 connections can take half a second."""
MAX_CUTS: Final = 8
"""Number of connections that a new policy resets before other tasks run. The end of each takes much longer than its comparison."""
LOOKUPS_PER_S: Final = 20
"""Lookups of records other than addresses that a sandbox may make in a second, after a burst of ``LOOKUPS_BURST``."""
LOOKUPS_BURST: Final = 40

_DNS_PORT: Final = 53
_BYTES_OF_MBIT: Final = 125_000
_log = structlog.get_logger("sandlot.egress")


class Gateway:
    """Network access of all sandboxes of a service.

    Args:
        connector: Resolves names and connects. It serves nothing but sandboxes, so that they delay no other part of the service.
        mbit: Rate limit of each sandbox in Mbit/s, for both directions together. None: no limit.
        now: Clock.
        make_resolver: Returns the resolver for records other than addresses.
    """

    def __init__(
        self,
        connector: Connector,
        *,
        mbit: int | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        make_resolver: MakeResolver = system_resolver,
    ) -> None:
        self.connector = connector
        self.now = now
        self.make_resolver = make_resolver
        self.open_connections = 0
        """Number of open connections of all sandboxes."""
        self._mbit = mbit

    def open(self, sandbox: str, policy: NetworkPolicy, on_refusal: Callable[[NetworkRefusal], object]) -> GatewayNetwork:
        """Return the network access of a sandbox. The caller must close it.

        Args:
            sandbox: Id of the sandbox.
            policy: Network policy of the sandbox.
            on_refusal: Called for each refusal that differs from those that are kept, at most once a second for one sandbox.
        """
        rate = None if self._mbit is None else RateLimit(self._mbit * _BYTES_OF_MBIT)
        return GatewayNetwork(self, sandbox, policy, rate, on_refusal)


class GatewayNetwork:
    """Network access of one sandbox.

    Args:
        gateway: Gateway with the connections of all sandboxes.
        sandbox: Id of the sandbox.
        policy: Network policy of the sandbox.
        rate: Rate limit of the sandbox. None: no limit.
        on_refusal: Called with new refusals.
    """

    def __init__(
        self, gateway: Gateway, sandbox: str, policy: NetworkPolicy, rate: RateLimit | None, on_refusal: Callable[[NetworkRefusal], object]
    ) -> None:
        self._gateway = gateway
        self._on_refusal = on_refusal
        self._activity = ActivityLog(gateway.now)
        self._access = Access(
            sandbox, gateway.connector, PolicyDecisions(policy), self._activity, rate, asyncio.Semaphore(MAX_CONNECTS), self._on_refused
        )
        self._connections: set[Connection] = set()
        self._unchecked: list[Connection] = []
        """Open connections that were not compared with the present policy yet."""
        self._checks: asyncio.Handle | None = None
        self._reported_s = -REPORT_S
        self._is_closed = False
        self._open_rate = RateLimit(OPENS_PER_S, burst_s=OPENS_BURST / OPENS_PER_S)
        self._open_turn = asyncio.Lock()
        """Held by the connection that waits for the rate. Those behind it have taken nothing yet, so that they can leave."""
        self._lookup_rate = RateLimit(LOOKUPS_PER_S, burst_s=LOOKUPS_BURST / LOOKUPS_PER_S)

    def services(self) -> Mapping[str, GuestService]:
        """Return the services ``connect`` and ``dns`` for the guest of the sandbox."""
        return {schema.CONNECT: _Service(self.connect, "host", "port"), schema.DNS: _Service(self.look_up, "name", "type")}

    def set_policy(self, policy: NetworkPolicy) -> None:
        """Decide about new connections and requests by another policy, and reset open connections that the policy does not allow.

        The first connections are compared with the policy at once, and the other ones while other tasks run.
        """
        self._access.decisions = PolicyDecisions(policy)
        self._unchecked = list(self._connections)
        if self._checks is None:
            self._check_some()

    def _check_some(self) -> None:
        """Compare open connections with the policy for ``CHECK_S``, and continue in the next turn of the event loop."""
        self._checks = None
        until_s, cuts = time.monotonic() + CHECK_S, 0
        while self._unchecked:
            connection = self._unchecked.pop()
            if connection in self._connections and not connection.is_allowed():
                connection.cut()
                cuts += 1
            if self._unchecked and (cuts == MAX_CUTS or time.monotonic() >= until_s):
                self._checks = asyncio.get_running_loop().call_soon(self._check_some)
                return

    def activity(self) -> NetworkActivity:
        """Return the refusals, destinations and bytes of the sandbox."""
        return self._activity.activity(len(self._connections))

    def close(self) -> None:
        """Reset all connections and refuse new ones. Idempotent."""
        self._is_closed = True
        self._unchecked.clear()
        for connection in list(self._connections):
            connection.cut()

    async def connect(self, stream: GuestStream, host: object, port: object) -> None:
        """Serve a stream of the service ``connect``.

        Args:
            stream: Stream of the guest.
            host: Host that the guest named, not checked.
            port: Port that the guest named, not checked.
        """
        async with self._open_turn:
            await self._open_rate.take(1)
        if self._is_closed or type(host) is not str or type(port) is not int:
            stream.reset("forbidden", "The connection was refused.")
            return
        destination = _parse(host, port)
        if isinstance(destination, Destination) and self._is_full:
            destination = Refusal(RefusalReason.LIMIT_EXCEEDED, str(destination.host), port)
        if isinstance(destination, Refusal):
            self._on_refused(destination)
            stream.reset("forbidden", "The connection was refused.")
            return
        from sandlot.egress.gateway.connection import Connection  # noqa: PLC0415 - parsers of HTTP and TLS, which take 15 ms to import

        connection = Connection(stream, destination, self._access, small_buffers=len(self._connections) >= MAX_LARGE_BUFFERS)
        self._connections.add(connection)
        self._gateway.open_connections += 1
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)
            self._gateway.open_connections -= 1

    async def look_up(self, stream: GuestStream, name: object, type_: object) -> None:
        """Serve a stream of the service ``dns``.

        Args:
            stream: Stream of the guest.
            name: Name of the question, not checked.
            type_: Type of the question, not checked.
        """
        host = _parse(name, _DNS_PORT).host if type(name) is str and type(type_) is str and type_ in TYPES else None
        if not isinstance(host, str) or self._is_closed or not self._lookup_rate.try_take(1) or not self._access.decisions.allows_name(host):
            stream.reset("forbidden", "The lookup was refused.")
            return
        await stream.write(await look_up(str(host), str(type_), self._gateway.make_resolver))

    @property
    def _is_full(self) -> bool:
        free = MAX_TOTAL_CONNECTIONS - self._gateway.open_connections
        return free <= 0 or len(self._connections) >= min(MAX_CONNECTIONS, max(MIN_CONNECTIONS, free // 2))

    def _on_refused(self, refusal: Refusal, failed: str = "") -> None:
        record = self._activity.add_refusal(refusal)
        now_s = time.monotonic()
        if record is None or now_s - self._reported_s < REPORT_S:
            return
        self._reported_s = now_s
        _log.info("network.refused", sandbox=self._access.sandbox, host=record.host, port=record.port, reason=str(record.reason), failed=failed)
        self._on_refusal(record)


class _Service:
    """A service with two arguments.

    Args:
        serve: Serves a stream.
        names: Names of the arguments.
    """

    def __init__(self, serve: Callable[[GuestStream, object, object], Awaitable[None]], *names: str) -> None:
        self._serve = serve
        self._names = names

    async def serve(self, stream: GuestStream, args: Mapping[str, Any]) -> None:
        """Serve one stream, until it ends."""
        first, second = (args.get(name) for name in self._names)
        await self._serve(stream, first, second)


def _parse(host: str, port: int) -> Destination | Refusal:
    """Return a destination, or the refusal of one that cannot exist, with the beginning of the host in printable characters."""
    try:
        return parse_destination(host, port)
    except ValueError:
        text = "".join(char if char.isascii() and char.isprintable() else "?" for char in host[:MAX_NAME_CHARS])
        if 1 <= port <= MOST_PORT:
            return Refusal(RefusalReason.NAME_NOT_FOUND, text, port)
        return Refusal(RefusalReason.PORT_NOT_ALLOWED, text, 0)
