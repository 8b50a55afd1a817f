"""What ``sandlot webhook`` asks of the service, and what it prints."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script
from tests.unit.sdk.test_webhooks import HOOK


def test_disabled_webhook_is_created_with_a_secret_from_a_file(there: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "secret"
    own.write_text(" of my own \r\n\n")
    there.say(*[Reply(201, {**HOOK, "enabled": False, "secret": " of my own"})] * 2)
    asked = ["webhook", "create", "https://example.com/", "--disabled", "--secret-file", str(own)]
    assert dispatch(asked) == 0
    assert capsys.readouterr().out == f"{HOOK['id']}\n"
    assert there.seen[-1].json() == {"url": "https://example.com/", "secret": " of my own", "enabled": False}
    assert dispatch([*asked, "--json"]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)["enabled"] is False
    assert "of my own" not in told


def test_invalid_secret_file_is_reported_without_a_request(
    there: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for command in (["create", "https://example.com/"], ["update", HOOK["id"]]):
        with subtests.test(command=command):
            (tmp_path / "empty").write_text(" \n")
            (tmp_path / "bytes").write_bytes(b"\xff\xfe")
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
            wrong = {"missing": "No such file", "": "Is a directory", "empty": "empty", "bytes": "not UTF-8"}
            for name, words in wrong.items():
                assert dispatch(["webhook", *command, "--secret-file", str(tmp_path / name)]) == 2
                assert words in " ".join(capsys.readouterr().err.split())
            assert dispatch(["webhook", *command, "--secret-file", "-"]) == 2
            assert "Standard input is empty" in " ".join(capsys.readouterr().err.split())
            assert there.seen == []


def test_ls_tells_how_they_fare(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(Reply(200, {"webhooks": [HOOK]}), Reply(200, {"webhooks": []}), Reply(200, {"webhooks": [HOOK]}))
    assert dispatch(["webhook", "ls"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["ID", "NAME", "URL", "EVENTS"]
    assert row.split()[:7] == [HOOK["id"], "-", HOOK["url"], "sandbox.ended", "yes", "3", "1"]
    assert dispatch(["webhook", "ls"]) == 0
    assert "sandlot webhook create" in capsys.readouterr().err
    assert dispatch(["webhook", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["delivered"] == 3


def test_update_takes_another_secret_from_standard_input(there: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"another secret\n")))
    there.say(Reply(200, HOOK))
    assert dispatch(["webhook", "update", HOOK["id"], "--secret-file", "-"]) == 0
    assert there.seen[-1].json() == {"secret": "another secret"}


def test_update_sends_what_is_given(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(*[Reply(200, {**HOOK, "enabled": False})] * 3)
    assert dispatch(["webhook", "update", HOOK["id"], "--disable", "--url", "https://example.com/2", "--event", "sandbox.ended", "--name", "n"]) == 0
    assert capsys.readouterr().out == f"{HOOK['id']}\n"
    assert (there.seen[-1].method, there.seen[-1].path) == ("PATCH", f"/v1/webhooks/{HOOK['id']}")
    assert there.seen[-1].json() == {"url": "https://example.com/2", "events": ["sandbox.ended"], "name": "n", "enabled": False}
    assert dispatch(["webhook", "update", HOOK["id"], "--enable", "--all-events", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["enabled"] is False
    assert there.seen[-1].json() == {"events": [], "enabled": True}
    for wrong in ([], ["--event", "sandbox.ended", "--all-events"]):
        assert dispatch(["webhook", "update", HOOK["id"], *wrong]) == 2
    assert len(there.seen) == 2
