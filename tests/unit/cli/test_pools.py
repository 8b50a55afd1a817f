"""What ``sandlot pool`` asks of the service, and what it prints."""

from __future__ import annotations

import json

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script
from tests.unit.sdk.test_pools import POOL


def test_create_sends_what_it_is_given_and_prints_the_id_alone(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(201, POOL))
    assert dispatch(["pool", "create", "-t", "base", "--warm", "2", "--max", "4", "--prepared", "1", "--memory", "512M"]) == 0
    assert capsys.readouterr().out == f"{POOL['id']}\n"
    assert there.seen[-1].json() == {"template": "base", "limits": {"memory_bytes": 512 << 20}, "warm": 2, "max": 4, "prepared": 1}
    there.say(Reply(201, POOL))
    assert dispatch(["pool", "create", "--metadata", "team=blue", "-m", "for=a=b"]) == 0
    assert there.seen[-1].json() == {"warm": 1, "metadata": {"team": "blue", "for": "a=b"}}


def test_ls_tells_what_waits_and_how_many_requests_were_answered(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, {"pools": [{**POOL, "error": "no room\x1b[31m"}]}))
    assert dispatch(["pool", "ls"]) == 0
    told = capsys.readouterr()
    head, row = told.out.splitlines()
    assert head.split()[:3] == ["ID", "TEMPLATE", "ISOLATION"]
    assert row.split() == ["pool-abcdefghijkl", "base", "gvisor", "0.5", "1G", "1+1", "2", "4", "0/1", "3", "1", "75%", "20M", "0123456789ab"]
    assert "no room" in told.err
    assert "\x1b" not in told.err
    there.say(Reply(200, {"pools": [{**POOL, "owner": None}]}))
    assert dispatch(["pool", "ls"]) == 0
    assert capsys.readouterr().out.split()[-1] == "-"
    there.say(Reply(200, {"pools": []}), Reply(200, {"pools": [POOL]}))
    assert dispatch(["pool", "ls"]) == 0
    assert "sandlot pool create" in capsys.readouterr().err
    assert dispatch(["pool", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["claims"]["warm"] == 3


def test_update_needs_something_to_change(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["pool", "update", "base"]) == 2
    assert there.seen == []
    there.say(Reply(200, POOL))
    assert dispatch(["pool", "update", "base", "--warm", "2"]) == 0
    assert there.seen[-1].json() == {"warm": 2}
    assert capsys.readouterr().out.splitlines()[1].split() == ["pool-abcdefghijkl", "2", "4", "1"]
    there.say(Reply(200, POOL))
    assert dispatch(["pool", "update", "base", "--metadata", "team=red", "--metadata", "for=tests"]) == 0
    assert there.seen[-1].json() == {"metadata": {"team": "red", "for": "tests"}}
    assert dispatch(["pool", "update", "base", "--metadata", "team"]) == 2
    assert len(there.seen) == 2
