"""``sandlot snapshot``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandlot.cli.main import dispatch
from tests.unit.cli.test_lifecycle import BOX
from tests.unit.sdk.scripted import Reply, Script

SNAPSHOT: dict[str, Any] = {
    "id": "snap-1",
    "name": "mine",
    "kind": "memory",
    "sandbox": "sb-1",
    "template": "base",
    "isolation": "gvisor",
    "size_bytes": 3 << 20,
    "created_at": "2026-11-22T00:00:00+00:00",
    "node": "abcd",
}


def test_create_prints_the_id_alone(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, BOX), Reply(201, SNAPSHOT), Reply(200, BOX), Reply(201, SNAPSHOT))
    assert dispatch(["snapshot", "create", "sb-1", "--name", "mine", "--kind", "files"]) == 0
    assert capsys.readouterr() == ("snap-1\n", "sandlot: the snapshot uses 3M of disk space\n")
    assert (there.seen[-1].path, there.seen[-1].json()) == ("/v1/sandboxes/sb-1/snapshots", {"name": "mine", "kind": "files"})
    assert dispatch(["snapshot", "create", "sb-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["size_bytes"] == 3 << 20


def test_snapshots_are_listed(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, {"snapshots": [SNAPSHOT, {**SNAPSHOT, "id": "snap-2", "name": None}], "next_cursor": None}))
    assert dispatch(["snapshot", "ls"]) == 0
    heads, first, second = capsys.readouterr().out.splitlines()
    assert heads.split() == ["ID", "NAME", "KIND", "TEMPLATE", "ISOLATION", "SIZE", "AGE", "SANDBOX"]
    assert (first.split()[:6], first.split()[-1]) == (["snap-1", "mine", "memory", "base", "gvisor", "3M"], "sb-1")
    assert second.split()[:2] == ["snap-2", "-"]
    assert dispatch(["snapshot", "ls", "-q"]) == 0
    assert capsys.readouterr().out == "snap-1\nsnap-2\n"
    assert dispatch(["snapshot", "ls", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["mine", None]
    there.say(Reply(200, {"snapshots": [], "next_cursor": None}))
    assert dispatch(["snapshot", "ls"]) == 0
    assert capsys.readouterr() == ("", "No snapshots. Take one with `sandlot snapshot create SANDBOX`.\n")
