"""``sandlot network``, and the network options of ``create`` and ``update``."""

from __future__ import annotations

import json

import pytest

from sandlot.cli.main import dispatch
from tests.support.cases import cases
from tests.unit.cli.test_lifecycle import BOX
from tests.unit.sdk.scripted import Reply, Script
from tests.unit.sdk.test_network import POLICY, REACHED, REFUSAL


@cases(
    "options, network",
    [
        ("--network internet", {"mode": "internet"}),
        ("--allow a.com --allow b.com:22 --deny c.a.com", {"mode": "allowlist", "allow": ["a.com", "b.com:22"], "deny": ["c.a.com"]}),
        ("--network internet --deny a.com --no-packages", {"mode": "internet", "deny": ["a.com"], "packages": False}),
    ],
)
def test_options_are_the_whole_policy(there: Script, options: str, network: dict[str, object]) -> None:
    there.say(Reply(200, BOX), Reply(200, BOX))
    assert dispatch(["update", "sb-1", *options.split()]) == 0
    assert there.seen[-1].json() == {"network": network}


def test_packages_option_needs_a_policy(there: Script) -> None:
    assert dispatch(["update", "sb-1", "--packages"]) == 2
    assert there.seen == []


def test_info_shows_policy_refusals_and_destinations(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    empty = {"policy": {**POLICY, "packages": None}, "refusals": [], "destinations": [], "sent_bytes": 0, "received_bytes": 0, "open_connections": 0}
    there.say(Reply(200, BOX), Reply(200, {**empty, "policy": POLICY, "refusals": [REFUSAL], "destinations": [REACHED]}))
    assert dispatch(["network", "info", "sb-1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:5] == [["mode", "allowlist"], ["deny", "b.example.com"], ["allow", "example.org"], ["packages", "yes"]]
    assert lines[6] == ["4", "example.com:443", "-", "-", "host_not_allowed", "2"]
    assert lines[8][:4] == ["example.org:443", "1", "2", "3"]
    there.say(Reply(200, BOX), Reply(200, empty), Reply(200, BOX), Reply(200, empty))
    assert dispatch(["network", "info", "sb-1"]) == 0
    assert capsys.readouterr().err.splitlines() == ["No refusals.", "No reached destinations."]
    assert dispatch(["network", "info", "sb-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"]["mode"] == "allowlist"


def test_approve_prints_the_policy(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, BOX), Reply(200, POLICY), Reply(200, BOX), Reply(200, POLICY))
    assert dispatch(["network", "approve", "sb-1", "4"]) == 0
    assert (there.seen[-1].path, there.seen[-1].json()) == ("/v1/sandboxes/sb-1/network/approve", {"refusal": "4"})
    assert "example.org" in capsys.readouterr().out
    assert dispatch(["network", "approve", "sb-1", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["generation"] == 2
