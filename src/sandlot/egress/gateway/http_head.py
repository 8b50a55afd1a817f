"""The parts of an HTTP request that policies decide: method, path and host. Pure.

Invariant: a request that servers could read in several ways is refused. h11 refuses malformed heads, and this module refuses two lengths of the
body and targets with a host of their own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import h11

from sandlot.egress.policy.addresses import Address
from sandlot.egress.policy.destinations import Destination, parse_host
from sandlot.model import network
from sandlot.model.network_activity import RefusalReason

DEFAULT_PORT: Final = 80

_PERCENT: Final = re.compile(rb"%(?![0-9a-fA-F]{2})")
_HOST: Final = re.compile(r"(?:\[(?P<bracketed>[0-9a-fA-F:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5})?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The parts of a request that policies decide.

    Args:
        path: Path in the normal form of rules. None: servers could read the path in several ways, so no rule can match.
        host: Host and port of the ``Host`` header. The port is that of the connection if the header has none. None: the request has no such header.
    """

    method: str
    path: str | None
    host: Destination | None


def read_head(request: h11.Request, port: int) -> RequestHead | RefusalReason:
    """Return the parts of a request that policies decide, or the reason for which every policy refuses the request.

    Args:
        request: Request that h11 has parsed.
        port: Port of the connection.
    """
    if request.http_version not in {b"1.0", b"1.1"}:
        return RefusalReason.PROTOCOL_NOT_SUPPORTED
    names = [name for name, _ in request.headers]
    if b"transfer-encoding" in names and b"content-length" in names:
        return RefusalReason.PROTOCOL_NOT_SUPPORTED
    if request.method == b"CONNECT":
        return RefusalReason.METHOD_NOT_ALLOWED
    target = request.target
    if not target.startswith(b"/") and target != b"*":
        return RefusalReason.HTTP_HOST_MISMATCH  # the host of an absolute target takes precedence over the header (RFC 9112, 3.2.2)
    hosts = [value for name, value in request.headers if name == b"host"]
    if not hosts:
        return RequestHead(request.method.decode("ascii"), normal_path(target), None)
    host = _parse_host_header(hosts[0], port)
    return RefusalReason.HTTP_HOST_MISMATCH if host is None else RequestHead(request.method.decode("ascii"), normal_path(target), host)


def normal_path(target: bytes) -> str | None:
    """Return the path of a target in the normal form of rules (:func:`sandlot.model.network.normal_path`).

    Returns:
        None if servers could read the path in several ways, also because of parameters (``;``) or an invalid encoding.
    """
    path = target.partition(b"?")[0]
    if path == b"*":
        return "*"
    if b"#" in path or _PERCENT.search(path):
        return None
    try:
        normal = network.normal_path(path, "/\\;")
    except UnicodeError:
        return None
    return normal or (None if normal is None else "/")


def _parse_host_header(value: bytes, port: int) -> Destination | None:
    match = _HOST.fullmatch(value.decode("latin-1"))
    if match is None:
        return None
    try:
        host: str | Address = parse_host(match["bracketed"] or match["name"])
    except ValueError:
        return None
    return Destination(host, port if match["port"] is None else int(match["port"]))
