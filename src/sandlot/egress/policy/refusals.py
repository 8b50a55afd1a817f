"""Refused connections and requests, and the description that a program in the sandbox reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sandlot.model.errors import ErrorCode
from sandlot.model.network_activity import RefusalReason

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
        RefusalReason.ADDRESS_NOT_PUBLIC: "Use a public host, or ask the operator to list the private network in SANDLOT_NETWORK_PRIVATE.",
        RefusalReason.NAME_NOT_FOUND: "Check the spelling of the host name.",
        RefusalReason.TLS_NAME_MISMATCH: "Connect to the host by its name, and use the same name for TLS, without Encrypted Client Hello.",
        RefusalReason.HTTP_HOST_MISMATCH: "Connect to the host by its name, and send one Host header with the same name and port.",
        RefusalReason.PROTOCOL_NOT_SUPPORTED: "Send valid requests in HTTP/1.1. This host and port support no other protocol.",
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
