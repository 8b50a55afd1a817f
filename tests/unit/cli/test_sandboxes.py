"""What the commands about sandboxes ask of the service, and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from sandlot.cli.main import dispatch
from sandlot.sdk.local_service import LocalService
from tests.unit.sdk.scripted import Reply, Script, Seen, problem

BOX: dict[str, Any] = {
    "id": "sb-abcd-abcdefghijklmnop",
    "state": "running",
    "template": "base",
    "name": "mine",
    "isolation": "gvisor",
    "network": {"mode": "none"},
    "created_at": "2026-11-22T00:00:00+00:00",
    "expires_at": None,
    "persistent": True,
    "idle_timeout": 60.0,
    "node": "abcd",
    "metadata": {"user": "alice"},
}


def test_create_sends_what_it_is_given_and_prints_the_id_alone(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(seen: Seen) -> Reply:
        return Reply(200, {"templates": []}) if seen.path == "/v1/templates" else Reply(201, BOX)

    there.say(answer)
    options = "--persistent --idle-timeout 60 --name mine -m user=alice -e A=b --file-id file-1 --idempotency-key k --network none --cpus 0.5"
    options += " --public-ports --mask-request-host app.example.com"
    assert dispatch(["create", "-t", "base", *options.split()]) == 0
    assert capsys.readouterr().out == f"{BOX['id']}\n"
    assert there.seen[-1].headers["idempotency-key"] == "k"
    assert there.seen[-1].json() == {
        "template": "base",
        "persistent": True,
        "idle_timeout": 60,
        "name": "mine",
        "metadata": {"user": "alice"},
        "env": {"A": "b"},
        "file_ids": ["file-1"],
        "network": {"mode": "none"},
        "limits": {"cpus": 0.5},
        "public_ports": True,
        "mask_request_host": "app.example.com",
    }


def test_ls_asks_for_state_and_metadata_and_prints_a_table(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(
        Reply(200, {"sandboxes": [BOX, {**BOX, "id": "sb-2", "name": None, "persistent": False, "exit": {"reason": "oom"}}], "next_cursor": None})
    )
    assert dispatch(["ls", "--state", "running", "--state", "paused", "-m", "user=alice", "-m", "a=b", "--all", "--limit", "5"]) == 0
    assert parse_qs(there.seen[0].query) == {"state": ["running,paused"], "metadata": ["user=alice", "a=b"], "ended": ["true"], "limit": ["5"]}
    heads, first, second = capsys.readouterr().out.splitlines()
    assert heads.split() == ["ID", "NAME", "TEMPLATE", "ISOLATION", "STATE", "AGE", "ENDS", "IN"]
    assert (first.split()[:2], first.split()[-1]) == ([BOX["id"], "mine"], "never")
    assert (second.split()[:2], second.split()[-1]) == (["sb-2", "-"], "-")


def test_update_sends_only_the_given_options_and_prints_the_sandbox(
    there: Script, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for options, body in (
        ("--timeout 90", {"timeout": 90.0}),
        ("--persistent", {"persistent": True}),
        ("--name new -m a=b -m c=d --idle-timeout 0", {"name": "new", "metadata": {"a": "b", "c": "d"}, "idle_timeout": 0}),
        ("--memory 512M --pids 20 --no-auto-resume", {"limits": {"memory_bytes": 512 << 20, "pids": 20}, "auto_resume": False}),
        ("--public-ports", {"public_ports": True}),
        ("--no-public-ports --mask-request-host=", {"public_ports": False, "mask_request_host": ""}),
    ):
        with subtests.test(options=options):
            there.seen.clear()
            there.say(lambda _: Reply(200, BOX))
            assert dispatch(["update", str(BOX["id"]), *options.split()]) == 0
            (changed,) = [seen for seen in there.seen if seen.method == "PATCH"]
            assert changed.json() == body
            assert ["ends", "in", "never"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    there.seen.clear()
    for wrong in ([], ["--persistent", "--timeout", "5"]):
        assert dispatch(["update", str(BOX["id"]), *wrong]) == 2
    assert there.seen == []


def test_info_prints_public_ports_and_the_masked_host_only_if_there_are_any(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for more in ({}, {"public_ports": True, "mask_request_host": "app.example.com"}):
        there.say(Reply(200, {**BOX, **more}))
        assert dispatch(["info", str(BOX["id"])]) == 0
        shown.append([line.split() for line in capsys.readouterr().out.splitlines() if "public" in line or "masked" in line])
    assert shown == [[], [["public", "ports", "yes"], ["masked", "host", "app.example.com"]]]


def test_rm_goes_on_after_a_failure_and_says_so(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(problem(404, "sandbox_not_found"), Reply(204))
    assert dispatch(["rm", "sb-1", "sb-2"]) == 1
    assert capsys.readouterr() == ("sb-2\n", "sandlot: sb-1: it is sandbox_not_found do this\n")


def test_where_sandboxes_may_live_on_their_service_is_started_to_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Path] = []

    def start(local: LocalService) -> None:
        started.append(local.data_dir)
        raise InterruptedError

    monkeypatch.delenv("SANDLOT_URL", raising=False)
    monkeypatch.setenv("SANDLOT_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("sandlot.sdk.local_service.LocalService.ensure", start)
    assert dispatch(["ls"]) == 0
    assert started == []
    (tmp_path / "sandboxes" / "one").mkdir(parents=True)
    assert dispatch(["ls"]) == 1
    assert started == [tmp_path]
