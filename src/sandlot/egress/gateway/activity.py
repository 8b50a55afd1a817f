"""Records of the network activity of one sandbox. No I/O.

Invariants:
- At most ``MAX_RECORDS`` refusals and destinations are kept. Equal ones are one record with a count.
- The id of a refusal is never used again. Each text of a record has at most ``MAX_TEXT_CHARS`` characters.
- The work for one refusal or connection does not depend on the number of records.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from sandlot.egress.policy.destinations import Destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.network_activity import MAX_RECORDS, MAX_TEXT_CHARS, NetworkActivity, NetworkDestination, NetworkRefusal


@dataclass(slots=True)
class Traffic:
    """Connections to one destination, and their bytes.

    Args:
        sent_bytes: Bytes that the sandbox has sent.
        received_bytes: Bytes that the sandbox has received.
    """

    destination: Destination
    last_at: datetime
    connections: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


class ActivityLog:
    """Refusals and destinations of one sandbox.

    Args:
        now: Clock.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._refusals: dict[Refusal, NetworkRefusal] = {}
        self._traffic: dict[Destination, Traffic] = {}
        self._prefix = secrets.token_hex(4)
        """Beginning of all ids: a sandbox that was hibernated, or that a new service found, gets another log, which must not repeat ids."""
        self._last_id = 0
        self._sent_bytes = 0
        self._received_bytes = 0

    def add_refusal(self, refusal: Refusal) -> NetworkRefusal | None:
        """Record a refusal, and return it if no equal one is kept."""
        key = replace(refusal, method=refusal.method[:MAX_TEXT_CHARS], path=refusal.path[:MAX_TEXT_CHARS])
        kept = self._refusals.pop(key, None)
        now = self._now()
        if kept is not None:
            self._refusals[key] = replace(kept, count=kept.count + 1, last_at=now)
            return None
        self._last_id += 1
        record = NetworkRefusal(f"{self._prefix}-{self._last_id}", key.reason, key.host, key.port, key.rule, key.method, key.path, 1, now, now)
        self._refusals[key] = record
        if len(self._refusals) > MAX_RECORDS:
            del self._refusals[next(iter(self._refusals))]
        return record

    def add_connection(self, destination: Destination) -> Traffic:
        """Record a connection, and return the record to which its bytes are added."""
        traffic = self._traffic.pop(destination, None) or Traffic(destination, self._now())
        traffic.connections += 1
        traffic.last_at = self._now()
        self._traffic[destination] = traffic
        if len(self._traffic) > MAX_RECORDS:
            del self._traffic[next(iter(self._traffic))]
        return traffic

    def add_bytes(self, traffic: Traffic, *, sent: int = 0, received: int = 0) -> None:
        """Add the bytes of a connection to its record and to the sums."""
        traffic.sent_bytes += sent
        traffic.received_bytes += received
        traffic.last_at = self._now()
        self._sent_bytes += sent
        self._received_bytes += received

    def activity(self, open_connections: int) -> NetworkActivity:
        """Return all records."""
        return NetworkActivity(
            refusals=tuple(self._refusals.values()),
            destinations=tuple(
                NetworkDestination(
                    str(each.destination.host), each.destination.port, each.connections, each.sent_bytes, each.received_bytes, each.last_at
                )
                for each in self._traffic.values()
            ),
            sent_bytes=self._sent_bytes,
            received_bytes=self._received_bytes,
            open_connections=open_connections,
        )
