"""Refused connections and requests: the reasons, and the description that a program in the sandbox reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from sandlot.model.errors import ErrorCode


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
    PROTOCOL_NOT_SUPPORTED = "protocol_not_supported"
    """The policy limits requests to the destination, and the connection is not readable HTTP/1.1."""
    UPSTREAM_FAILED = "upstream_failed"
    """The destination is allowed, and its name server or the connection to the destination has failed."""
    LIMIT_EXCEEDED = "limit_exceeded"


_RESPONSES: Mapping[RefusalReason, tuple[int, ErrorCode]] = MappingProxyType(
    {
        RefusalReason.UPSTREAM_FAILED: (502, ErrorCode.SERVICE_UNAVAILABLE),
        RefusalReason.LIMIT_EXCEEDED: (429, ErrorCode.LIMIT_EXCEEDED),
    }
)
"""HTTP status and code of the reasons that are not a decision of the policy."""

NEXT_STEPS: Mapping[RefusalReason, str] = MappingProxyType(
    {
        RefusalReason.HOST_NOT_ALLOWED: "Use an allowed host, or ask the owner of the sandbox to allow this one in its network policy.",
        RefusalReason.PORT_NOT_ALLOWED: "Use an allowed port, or ask the owner of the sandbox to allow this one in its network policy.",
        RefusalReason.METHOD_NOT_ALLOWED: "Use an allowed method, or ask the owner of the sandbox to allow this one in its network policy.",
        RefusalReason.PATH_NOT_ALLOWED: "Use an allowed path, or ask the owner of the sandbox to allow this one in its network policy.",
        RefusalReason.ADDRESS_NOT_PUBLIC: "Use a public host, or ask the operator of the service to list the private network.",
        RefusalReason.NAME_NOT_FOUND: "Check the spelling of the host name.",
        RefusalReason.TLS_NAME_MISMATCH: "Connect to the host by its name, and use the same name for TLS, without Encrypted Client Hello.",
        RefusalReason.HTTP_HOST_MISMATCH: "Connect to the host by its name, and send one Host header with the same name and port.",
        RefusalReason.PROTOCOL_NOT_SUPPORTED: "Use plain HTTP/1.1, because the network policy limits methods or paths of this host.",
        RefusalReason.UPSTREAM_FAILED: "Retry later.",
        RefusalReason.LIMIT_EXCEEDED: "Close other connections, or retry later.",
    }
)
"""Advice for each reason."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused connection or request of a sandbox.

    Args:
        host: Host that the program named: a name or an address.
        port: Port of the destination.
        rule: Canonical text of the entry that denies the destination. Empty: no entry allows it, or the reason is not an entry.
        method: Method of the refused HTTP request. Empty: the whole connection is refused.
        path: Normalised path of the refused HTTP request.
    """

    reason: RefusalReason
    host: str
    port: int
    rule: str = ""
    method: str = ""
    path: str = ""

    @property
    def _response(self) -> tuple[int, ErrorCode]:
        return _RESPONSES.get(self.reason, (403, ErrorCode.FORBIDDEN))

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return self._response[0]

    def body(self) -> dict[str, Any]:
        """Return the body of the HTTP response, for JSON."""
        return {
            "code": str(self._response[1]),
            "reason": str(self.reason),
            "host": self.host,
            "port": self.port,
            "rule": self.rule or None,
            "next_steps": NEXT_STEPS[self.reason],
        }
