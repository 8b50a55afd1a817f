"""``sandbox.network`` and network policies in requests."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandlot import Client, InvalidRequestError, Network, NetworkDestination, NetworkInfo, NetworkRefusal, Sandbox
from tests.unit.sdk.scripted import Reply, Script
from tests.unit.sdk.test_sandbox import BOX

POLICY = {
    "mode": "allowlist",
    "entries": [{"allow": False, "rule": "b.example.com"}, {"allow": True, "rule": "example.org"}],
    "packages": True,
    "generation": 2,
}
AT = datetime(2026, 1, 2, tzinfo=UTC)
REFUSAL = {
    "id": "4",
    "reason": "host_not_allowed",
    "host": "example.com",
    "port": 443,
    "rule": None,
    "method": None,
    "path": None,
    "count": 2,
    "first_at": "2026-01-02T00:00:00Z",
    "last_at": "2026-01-02T00:00:00Z",
}
REACHED = {
    "host": "example.org",
    "port": 443,
    "connections": 1,
    "sent_bytes": 2,
    "received_bytes": 3,
    "last_at": "2026-01-02T00:00:00Z",
}


def test_policy_of_an_update_is_sent_as_a_whole(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, {**BOX, "network": POLICY}))
    info = sandbox.update(network=Network("internet", deny=["example.com"], packages=False))
    assert service.seen[-1].json() == {"network": {"mode": "internet", "deny": ["example.com"], "packages": False}}
    assert info.network == Network("allowlist", ["example.org"], ["b.example.com"], packages=True, generation=2)


def test_returned_policy_can_be_sent_again(service: Script, client: Client, sandbox: Sandbox) -> None:
    service.say(Reply(200, {**BOX, "network": POLICY}), Reply(201, BOX))
    policy = sandbox.update(name="x").network
    Sandbox.create(network=policy, client=client)
    expected = {"mode": "allowlist", "allow": ["example.org"], "deny": ["b.example.com"], "packages": True}
    assert service.seen[-1].json() == {"network": expected}


def test_text_in_place_of_rules_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        Network("allowlist", allow="github.com")
    with pytest.raises(InvalidRequestError):
        Network("internet", deny="github.com")


def test_info_has_policy_refusals_and_destinations(service: Script, sandbox: Sandbox) -> None:
    body = {"policy": POLICY, "refusals": [REFUSAL], "destinations": [REACHED], "sent_bytes": 2, "received_bytes": 3, "open_connections": 1}
    service.say(Reply(200, body))
    assert sandbox.network.info() == NetworkInfo(
        policy=Network("allowlist", ["example.org"], ["b.example.com"], packages=True, generation=2),
        refusals=(NetworkRefusal("4", "host_not_allowed", "example.com", 443, count=2, first_at=AT, last_at=AT),),
        destinations=(NetworkDestination("example.org", 443, 1, 2, 3, AT),),
        sent_bytes=2,
        received_bytes=3,
        open_connections=1,
    )
    assert service.seen[-1].path == f"/v1/sandboxes/{sandbox.id}/network"


def test_refusal_is_approved_by_itself_or_by_its_id(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, POLICY))
    for refusal in ("4", NetworkRefusal("4", "host_not_allowed", "example.com", 443)):
        assert sandbox.network.approve(refusal).generation == 2
        assert (service.seen[-1].path, service.seen[-1].json()) == (f"/v1/sandboxes/{sandbox.id}/network/approve", {"refusal": "4"})
