"""Approval of a refused destination: the network policy with an entry that allows exactly this destination. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sandlot.egress.policy.decisions import Content, HttpRequest, PolicyDecisions
from sandlot.egress.policy.destinations import parse_destination
from sandlot.egress.policy.refusals import Refusal
from sandlot.model.errors import ConflictError
from sandlot.model.network import NetworkEntry, NetworkMode, NetworkPolicy
from sandlot.model.network_activity import MAX_TEXT_CHARS, NetworkRefusal, RefusalReason

_MISSING_ENTRY: Final = frozenset(
    {
        RefusalReason.HOST_NOT_ALLOWED,
        RefusalReason.PORT_NOT_ALLOWED,
        RefusalReason.METHOD_NOT_ALLOWED,
        RefusalReason.PATH_NOT_ALLOWED,
    }
)
"""Reasons of refusals that another entry can prevent."""


def approve(policy: NetworkPolicy, refusal: NetworkRefusal) -> NetworkPolicy:
    """Return the policy with an entry for the destination of a refusal after all other entries. Return an equal policy if it has this entry already.

    The entry allows the host and the port; after the refusal of an HTTP request, only requests with this method, and with this path or a path below.

    Raises:
        ConflictError: An entry denies the destination, the refusal has a reason that no entry prevents, or the policy is no allowlist.
        InvalidRequestError: No rule can name the destination, or the policy has too many entries.
    """
    if refusal.rule:
        raise _denied(refusal, refusal.rule)
    if refusal.reason not in _MISSING_ENTRY:
        raise _not_possible(refusal, f"An entry of the network policy cannot prevent the reason {str(refusal.reason)!r}.", "Follow the next steps.")
    if policy.mode is not NetworkMode.ALLOWLIST:
        raise _not_possible(
            refusal, f"The network policy has the mode {str(policy.mode)!r}; only an allowlist can be extended.", "Update the network policy."
        )
    if refusal.method and (not refusal.path or len(refusal.path) >= MAX_TEXT_CHARS):  # servers could read the path in several ways, or it was cut
        raise _not_possible(refusal, "No rule covers this path alone.", "Update the network policy with a rule that covers more.")
    entry = NetworkEntry(allow=True, rule=_rule(refusal))
    if entry in policy.entries:
        return policy
    extended = replace(policy, entries=(*policy.entries, entry))
    content: Content = HttpRequest(refusal.method, refusal.path) if refusal.method else "unknown"
    decision = PolicyDecisions(extended).decide(parse_destination(refusal.host, refusal.port), content)
    if isinstance(decision, Refusal) and decision.rule:
        raise _denied(refusal, decision.rule)
    return extended


def _rule(refusal: NetworkRefusal) -> str:
    host = f"[{refusal.host}]" if ":" in refusal.host else refusal.host
    return f"{refusal.method} {host}:{refusal.port}{refusal.path}" if refusal.method else f"{host}:{refusal.port}"


def _denied(refusal: NetworkRefusal, rule: str) -> ConflictError:
    return ConflictError(
        f"The rule {rule!r} of the network policy denies {refusal.host}:{refusal.port}.",
        hint="Remove this rule by an update of the network policy.",
        fields={"refusal": refusal.id, "rule": rule},
    )


def _not_possible(refusal: NetworkRefusal, message: str, hint: str) -> ConflictError:
    return ConflictError(
        f"Refusal {refusal.id} cannot be approved. {message}", hint=hint, fields={"refusal": refusal.id, "reason": str(refusal.reason)}
    )
