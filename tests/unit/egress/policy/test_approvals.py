"""Approval of refused destinations: exactly this destination, after all other entries, and never against an entry that denies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sandlot.egress.policy.approvals import approve
from sandlot.model.errors import ConflictError, InvalidRequestError
from sandlot.model.network import NetworkMode, NetworkPolicy, network_entries
from sandlot.model.network_activity import MAX_TEXT_CHARS, NetworkRefusal, RefusalReason
from tests.support.gateway import refusal


def allowlist(*rules: str, deny: Sequence[str] = ()) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(rules, deny))


@pytest.mark.parametrize(
    "refused, rule",
    [
        (refusal("api.example.com", 443), "api.example.com:443"),
        (refusal("8.8.8.8", 53), "8.8.8.8:53"),
        (refusal("2606:4700::1", 443), "[2606:4700::1]:443"),
        (refusal("a.example.com", 22, reason=RefusalReason.PORT_NOT_ALLOWED), "a.example.com:22"),
        (refusal("a.example.com", 80, method="GET", path="/v1/models"), "GET a.example.com:80/v1/models"),
        (refusal("a.example.com", 80, reason=RefusalReason.METHOD_NOT_ALLOWED, method="POST", path="/"), "POST a.example.com:80"),
        (refusal("a.example.com", 80, reason=RefusalReason.PATH_NOT_ALLOWED, method="PUT", path="/a%20b"), "PUT a.example.com:80/a%20b"),
    ],
)
def test_approval_appends_an_entry_for_exactly_the_refused_destination(refused: NetworkRefusal, rule: str) -> None:
    policy = allowlist("example.org", deny=["b.example.com"])

    approved = approve(policy, refused)

    assert approved == allowlist("example.org", rule, deny=["b.example.com"])
    assert approve(approved, refused) == approved, "a second approval changes nothing"


@pytest.mark.parametrize(
    "policy, refused, rule",
    [
        (allowlist(deny=["example.com"]), refusal(rule="example.com"), "example.com"),
        (allowlist(), refusal(rule="example.com"), "example.com"),
        (allowlist(deny=["**.example.com"]), refusal("a.example.com"), "**.example.com"),
        (allowlist("GET example.com", deny=["POST example.com"]), refusal(port=80, method="POST", path="/"), "POST example.com"),
        (NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(["a.com"], ["8.8.8.0/24"], allow_first=True)), refusal("8.8.8.8", 53), "8.8.8.0/24"),
    ],
)
def test_approval_never_overrides_an_entry_that_denies(policy: NetworkPolicy, refused: NetworkRefusal, rule: str) -> None:
    with pytest.raises(ConflictError) as conflict:
        approve(policy, refused)
    assert dict(conflict.value.fields) == {"refusal": "1", "rule": rule}


@pytest.mark.parametrize(
    "reason", [reason for reason in RefusalReason if reason not in {"host_not_allowed", "port_not_allowed", "method_not_allowed", "path_not_allowed"}]
)
def test_refusal_that_no_entry_prevents_cannot_be_approved(reason: RefusalReason) -> None:
    with pytest.raises(ConflictError, match=reason):
        approve(allowlist(), refusal(reason=reason))


@pytest.mark.parametrize("mode", [NetworkMode.NONE, NetworkMode.PACKAGES, NetworkMode.INTERNET])
def test_only_an_allowlist_is_extended(mode: NetworkMode) -> None:
    with pytest.raises(ConflictError, match=mode):
        approve(NetworkPolicy(mode), refusal())


def test_approval_that_would_allow_more_than_the_refused_path_is_refused() -> None:
    with pytest.raises(ConflictError):
        approve(allowlist("GET example.com/v1"), refusal(port=80, reason=RefusalReason.PATH_NOT_ALLOWED, method="GET"))
    for path in ("", "/" + "x" * (MAX_TEXT_CHARS - 1)):
        with pytest.raises(ConflictError):
            approve(allowlist("example.org"), refusal(port=80, method="GET", path=path))


def test_host_without_a_rule_cannot_be_approved() -> None:
    with pytest.raises(InvalidRequestError):
        approve(allowlist(), refusal("database", 5432))
