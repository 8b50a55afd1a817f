"""Comparison of the destination that a program named with the server that its first bytes ask for. Pure.

Without this comparison, a program could reach every site that a shared server has, through the one site that the policy allows.
"""

from __future__ import annotations

import h11

from sandlot.egress.gateway.client_hello import ClientHello
from sandlot.egress.gateway.http_head import read_head
from sandlot.egress.policy.addresses import Address
from sandlot.egress.policy.decisions import HttpRequest, PolicyDecisions
from sandlot.egress.policy.destinations import Destination, parse_host
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.network_activity import RefusalReason


def check_hello(hello: ClientHello, decisions: PolicyDecisions, destination: Destination) -> Refusal | None:
    """Return the refusal of a TLS connection. None: the connection is allowed.

    If the program named a host, TLS must ask for the same name (SNI). If it named an address, TLS may ask for no name, or for a name that no entry
    denies.
    """
    permission = decisions.decide(destination, "opaque")
    if isinstance(permission, Refusal):
        return permission
    mismatch = Refusal(RefusalReason.TLS_NAME_MISMATCH, str(destination.host), destination.port)
    try:
        name = None if hello.server_name is None else parse_host(hello.server_name)
    except ValueError:
        return mismatch
    if isinstance(destination.host, str):
        return None if name == destination.host else mismatch
    if hello.may_hide_name and name is not None and decisions.denies_names:
        return mismatch
    return None if name is None else decisions.decide_server_name(permission, destination, name, "opaque")


def check_request(request: h11.Request, decisions: PolicyDecisions, destination: Destination, address: Address) -> Refusal | None:
    """Return the refusal of a plain HTTP request. None: the request is allowed.

    Args:
        request: Request that h11 has parsed.
        decisions: Policy of the sandbox.
        destination: Destination that the program named.
        address: Address to which the connection leads.
    """
    head = read_head(request, destination.port)
    if isinstance(head, RefusalReason):
        return Refusal(head, str(destination.host), destination.port, method=request.method.decode("ascii"))
    content = HttpRequest(head.method, head.path)
    permission = decisions.decide(destination, content)
    if isinstance(permission, Refusal):
        return permission
    mismatch = Refusal(RefusalReason.HTTP_HOST_MISMATCH, str(destination.host), destination.port, method=head.method, path=head.path or "")
    if isinstance(destination.host, str):
        return decisions.decide_address(permission, destination, address) if head.host == destination else mismatch
    if head.host is None or head.host.host == destination.host:
        return None
    if head.host.port != destination.port:
        return mismatch
    return decisions.decide_server_name(permission, destination, head.host.host, content)
