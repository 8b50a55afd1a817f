"""Listening ports and logs of a sandbox, in the client and on the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandlot.cli.main import dispatch
from sandlot.model.errors import UnavailableError
from sandlot.sdk import ListeningPort, LogEntry, Sandbox
from tests.unit.sdk.scripted import SANDBOX, Reply, Script, events

AT = "2026-01-01T00:00:00Z"
ENTRY = {"execution": "e1", "at": AT, "stream": "stdout", "text": "one\n", "omitted_bytes": 0, "running": False}
ERROR = {**ENTRY, "stream": "stderr", "text": "bad\n", "omitted_bytes": 7}
PORTS = {"ports": [{"port": 22, "address": "::1"}, {"port": 8000, "address": "0.0.0.0"}]}  # noqa: S104 - what is told
LOGS = {"entries": [ENTRY, ERROR], "more": False}
STREAM: list[tuple[str, dict[str, Any]]] = [
    ("entry", ENTRY),
    ("output", {"execution": "e2", "stream": "stderr", "text": "half"}),
    ("lost", {"execution": "e2", "stream": "stderr", "lost_bytes": 9}),
    ("over", {"execution": "e2"}),
    ("ended", {"sandbox": "sb"}),
]
TOLD = [("stdout", "one\n", 0), ("stderr", "half", 0), ("stderr", "", 9)]


def test_listening_ports_and_logs_are_read(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, PORTS), Reply(200, LOGS))
    assert sandbox.ports() == [ListeningPort(22, "::1"), ListeningPort(8000, "0.0.0.0")]  # noqa: S104 - a bound address
    first, second = sandbox.logs("both")
    assert (first.execution, first.text, first.running, str(first.at)) == ("e1", "one\n", False, "2026-01-01 00:00:00+00:00")
    assert (second.stream, second.omitted_bytes) == ("stderr", 7)
    path = f"/v1/sandboxes/{SANDBOX['id']}"
    assert [(seen.path, seen.query) for seen in service.seen] == [(f"{path}/ports", ""), (f"{path}/logs", "stream=both")]


def test_logs_are_followed_until_the_sandbox_ends(service: Script, sandbox: Sandbox) -> None:
    service.say(events(*STREAM))
    followed = list(sandbox.follow_logs("stderr"))
    assert [(entry.stream, entry.text, entry.omitted_bytes) for entry in followed] == TOLD
    assert (followed[1], service.seen[0].query) == (LogEntry("e2", "stderr", "half"), "stream=stderr")
    service.say(events(*STREAM[:-1], cut=True), events(*STREAM[:-1]))
    for _ in range(2):
        with pytest.raises(UnavailableError):
            list(sandbox.follow_logs())


def test_command_line_prints_logs(service: Script, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SANDLOT_URL", service.url)
    monkeypatch.delenv("SANDLOT_API_KEY", raising=False)
    service.say(Reply(200, SANDBOX), Reply(200, LOGS))
    assert dispatch(["logs", "sb"]) == 0
    assert capfd.readouterr() == ("one\n", "bad\n")
    service.say(Reply(200, SANDBOX), events(*STREAM))
    assert dispatch(["logs", "sb", "--follow", "--json"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["stream"], line["text"], line["lost_bytes"]) for line in lines] == TOLD
