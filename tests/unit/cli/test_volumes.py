"""What ``sandlot volume`` and ``--volume`` ask of the service, and what they print."""

from __future__ import annotations

import json

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script
from tests.unit.sdk.test_volumes import BOX, VOLUME


def test_volumes_are_made_listed_shown_and_removed(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(
        lambda seen: (
            Reply(204, None) if seen.method == "DELETE" else Reply(200, VOLUME if seen.path != "/v1/volumes" or seen.body else {"volumes": [VOLUME]})
        )
    )
    assert dispatch(["volume", "create", "data", "--size", "16M"]) == 0
    assert there.seen[-1].json() == {"name": "data", "size_bytes": 16 << 20}
    assert capsys.readouterr().out == f"{VOLUME['id']}\n"
    assert dispatch(["volume", "ls", "-q"]) == 0
    assert capsys.readouterr().out == f"{VOLUME['id']}\n"
    assert dispatch(["volume", "ls"]) == 0
    assert VOLUME["id"] in capsys.readouterr().out
    assert dispatch(["volume", "info", "data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attached"] == ["sb-1"]
    assert dispatch(["volume", "info", "data"]) == 0
    assert "sb-1" in capsys.readouterr().out
    assert dispatch(["volume", "rm", "data"]) == 0
    assert capsys.readouterr().out == "data\n"


def test_a_sandbox_is_made_with_volumes(there: Script) -> None:
    there.say(lambda seen: Reply(200, {"templates": []}) if seen.path == "/v1/templates" else Reply(201, BOX))
    assert dispatch(["create", "-t", "base", "--volume", "data:/data", "-v", "sets:/srv/sets:ro", "-v", "w:/w:rw"]) == 0
    assert there.seen[-1].json()["volumes"] == [
        {"volume": "data", "path": "/data"},
        {"volume": "sets", "path": "/srv/sets", "read_only": True},
        {"volume": "w", "path": "/w"},
    ]


def test_what_says_no_volume_and_no_place_is_refused(there: Script, subtests: pytest.Subtests) -> None:
    for words in (["data"], ["data:data"], [":/data"], ["a:/x", "b:/x"]):
        with subtests.test(words=words):
            options = [part for word in words for part in ("--volume", word)]
            assert dispatch(["create", "-t", "base", *options]) == 2
            assert there.seen == []


def test_one_is_attached_to_a_sandbox_and_detached(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(lambda _: Reply(200, BOX))
    assert dispatch(["volume", "attach", "sb-1", "data:/data:ro"]) == 0
    assert there.seen[-1].json() == {"volume": "data", "path": "/data", "read_only": True}
    assert dispatch(["volume", "attach", "sb-1", "data:/data"]) == 0
    assert there.seen[-1].json() == {"volume": "data", "path": "/data"}
    assert dispatch(["volume", "detach", "sb-1", "/data"]) == 0
    assert (there.seen[-1].method, there.seen[-1].path, there.seen[-1].query) == ("DELETE", "/v1/sandboxes/sb-1/volumes", "path=%2Fdata")
    assert capsys.readouterr().out == ""
    asked = len(there.seen)
    assert dispatch(["volume", "attach", "sb-1", "data"]) == 2
    assert len(there.seen) == asked
