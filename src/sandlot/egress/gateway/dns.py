"""Lookups of records other than addresses, such as MX and TXT, at the name servers of this machine.

Invariants:
- A response holds only records of the requested type and the aliases (CNAME) that lead to them. Further records that a name server adds,
  such as the addresses of mail servers, are left out.
- A failed lookup is a response that says so, without details.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

TYPES: Final = frozenset({"CAA", "CNAME", "MX", "SRV", "TXT"})
LOOKUP_S: Final = 5.0
MAX_RESPONSE_BYTES: Final = 4096
"""Maximum size of a response. A longer one is sent without records and marked as truncated."""

MakeResolver = Callable[[], "Resolver"]


def system_resolver() -> Resolver:
    """Return a resolver that asks the name servers of this machine."""
    from dns.asyncresolver import Resolver  # noqa: PLC0415 - few sandboxes need the library, which takes 60 ms to import

    return Resolver()


async def look_up(name: str, type_: str, make_resolver: MakeResolver = system_resolver) -> bytes:
    """Return the response to a question: a DNS message without EDNS.

    Args:
        name: Name in lower case without a trailing dot.
        type_: One of ``TYPES``.
        make_resolver: Returns a resolver. It is called for each lookup, because the name servers of the machine may change.
    """
    from dns import exception, flags, message, rcode, rdatatype, resolver  # noqa: PLC0415 - see above

    response = message.make_response(message.make_query(f"{name}.", type_), recursion_available=True)
    try:
        answer = await make_resolver().resolve(f"{name}.", type_, raise_on_no_answer=False, lifetime=LOOKUP_S, search=False)
        kept = {response.question[0].rdtype, rdatatype.CNAME}
        response.answer = [records for records in answer.response.answer if records.rdtype in kept]
    except resolver.NXDOMAIN:
        response.set_rcode(rcode.NXDOMAIN)
    except (exception.DNSException, OSError):
        response.set_rcode(rcode.SERVFAIL)
    try:
        return response.to_wire(max_size=MAX_RESPONSE_BYTES)
    except exception.TooBig:
        response.answer = []
        response.flags |= flags.TC
        return response.to_wire()
