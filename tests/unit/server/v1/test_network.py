"""Network of a sandbox over HTTP: its policy with refusals and destinations, approvals, and updates."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import httpx

from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError
from sandlot.model.network import NetworkMode, NetworkPolicy, network_entries
from sandlot.model.network_activity import NetworkActivity, NetworkDestination, NetworkStatus, RefusalReason
from tests.support.gateway import refusal
from tests.support.http import problem
from tests.support.scripted_node import Call, ScriptedNode, sandbox_info

ID = "sb-node-aaaaaaaaaaaaaaaa"
URL = f"/v1/sandboxes/{ID}"
POLICY = NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(["example.org"], ["b.example.com"]), generation=2)
SHOWN = {
    "mode": "allowlist",
    "entries": [{"allow": False, "rule": "b.example.com"}, {"allow": True, "rule": "example.org"}],
    "packages": True,
    "generation": 2,
}


async def test_network_has_policy_refusals_destinations_and_bytes(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    refused = refusal("b.example.com", 80, id="4", reason=RefusalReason.HOST_NOT_ALLOWED, rule="b.example.com", method="GET", path="/v1")
    reached = NetworkDestination("example.org", 443, connections=2, sent_bytes=3, received_bytes=4, last_at=at)
    scripted.script("network.get", NetworkStatus(POLICY, NetworkActivity((refused, refusal(id="5")), (reached,), 3, 4, 1)))

    found = (await api.get(f"{URL}/network")).json()

    assert scripted.calls[-1] == Call("network.get", {"principal": OPERATOR, "sandbox": ID})
    times = {"first_at": "2026-01-02T00:00:00Z", "last_at": "2026-01-02T00:00:00Z"}
    assert found == {
        "policy": SHOWN,
        "refusals": [
            {
                "id": "4",
                "reason": "host_not_allowed",
                "host": "b.example.com",
                "port": 80,
                "rule": "b.example.com",
                "method": "GET",
                "path": "/v1",
                "count": 1,
                **times,
            },
            {
                "id": "5",
                "reason": "host_not_allowed",
                "host": "example.com",
                "port": 443,
                "rule": None,
                "method": None,
                "path": None,
                "count": 1,
                **times,
            },
        ],
        "destinations": [
            {
                "host": "example.org",
                "port": 443,
                "connections": 2,
                "sent_bytes": 3,
                "received_bytes": 4,
                "last_at": "2026-01-02T00:00:00Z",
            }
        ],
        "sent_bytes": 3,
        "received_bytes": 4,
        "open_connections": 1,
    }


async def test_approval_returns_the_extended_policy_or_the_conflict(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    info = sandbox_info()
    scripted.script("network.approve", replace(info, spec=replace(info.spec, network=POLICY)), ConflictError("denied", fields={"rule": "a.com"}))

    assert (await api.post(f"{URL}/network/approve", json={"refusal": "4"})).json() == SHOWN
    assert scripted.calls[-1] == Call("network.approve", {"principal": OPERATOR, "sandbox": ID, "refusal": "4"})
    refused = problem(await api.post(f"{URL}/network/approve", json={"refusal": "4"}), 409, "conflict")
    assert refused["fields"] == {"rule": "a.com"}
    for body in ({}, {"refusal": 4}, {"refusal": "4", "more": 1}):
        problem(await api.post(f"{URL}/network/approve", json=body), 400, "invalid_request")
