"""Network activity of a sandbox: refused connections and requests with their reasons, and destinations that were reached."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from sandlot.model.network import NetworkPolicy

MAX_RECORDS: Final = 500
"""Maximum number of refusals, and of destinations, that are kept for each sandbox."""
MAX_TEXT_CHARS: Final = 256
"""Maximum length of the method and of the path of a refusal. Longer ones are cut."""


class RefusalReason(StrEnum):
    """Reason for which a connection or an HTTP request of a sandbox is refused. The reasons are part of the API."""

    HOST_NOT_ALLOWED = "host_not_allowed"
    PORT_NOT_ALLOWED = "port_not_allowed"
    """The policy allows the host on other ports only."""
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PATH_NOT_ALLOWED = "path_not_allowed"
    ADDRESS_NOT_PUBLIC = "address_not_public"
    """The destination has no address that sandboxes may reach: its addresses are private, reserved, or those of the host."""
    NAME_NOT_FOUND = "name_not_found"
    TLS_NAME_MISMATCH = "tls_name_mismatch"
    """The client asks for another server in TLS than the one it connects to, for none, or for a hidden one (Encrypted Client Hello)."""
    HTTP_HOST_MISMATCH = "http_host_mismatch"
    """The request has no ``Host`` header, several, or one with another host or port than those of the connection."""
    PROTOCOL_NOT_SUPPORTED = "protocol_not_supported"
    """The policy limits requests to the destination, or the port is one of HTTP, and the connection is not valid HTTP/1.1."""
    UPSTREAM_FAILED = "upstream_failed"
    """The destination is allowed, and its name server or the connection to the destination has failed."""
    LIMIT_EXCEEDED = "limit_exceeded"
    """The sandbox has too many connections, name lookups, or bytes that wait for the rest of a message."""


@dataclass(frozen=True, slots=True)
class NetworkRefusal:
    """Equal refusals of a sandbox.

    Args:
        id: Id within the sandbox, for example ``5f3a91c2-3``. Never used again for another refusal of the sandbox.
        host: Host that the program named: a name in lower case, or an address.
        rule: Canonical text of the entry that denies the destination. Empty: no entry allows it, or the reason is not an entry.
        method: Method of the refused HTTP request. Empty: the whole connection was refused.
        path: Path of the refused HTTP request in the normal form of rules. Empty if there is none.
        count: Number of refusals.
    """

    id: str
    reason: RefusalReason
    host: str
    port: int
    rule: str
    method: str
    path: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class NetworkDestination:
    """A host and port that programs of a sandbox have reached.

    Args:
        host: Host that the programs named: a name in lower case, or an address.
        connections: Number of connections.
        sent_bytes: Bytes that the sandbox has sent.
        received_bytes: Bytes that the sandbox has received.
    """

    host: str
    port: int
    connections: int
    sent_bytes: int
    received_bytes: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class NetworkActivity:
    """Network activity of a sandbox since the service was started or the sandbox was created, resumed from hibernation or restored.

    Args:
        refusals: At most ``MAX_RECORDS``, the newest last. If there are more, the oldest are dropped.
        destinations: At most ``MAX_RECORDS``, the newest last. If there are more, the oldest are dropped.
        sent_bytes: Bytes that the sandbox has sent to all destinations.
        received_bytes: Bytes that the sandbox has received from all destinations.
        open_connections: Connections that are open now.
    """

    refusals: tuple[NetworkRefusal, ...] = ()
    destinations: tuple[NetworkDestination, ...] = ()
    sent_bytes: int = 0
    received_bytes: int = 0
    open_connections: int = 0


@dataclass(frozen=True, slots=True)
class NetworkStatus:
    """Network policy of a sandbox, and what its programs have done under this policy and earlier ones."""

    policy: NetworkPolicy
    activity: NetworkActivity
