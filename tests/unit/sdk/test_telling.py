"""What a sandbox tells of itself, as both clients and the command line see it: what listens, what its runs wrote, and what they write."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandlot.cli.main import dispatch
from sandlot.model.errors import UnavailableError
from sandlot.sdk import Client, ListeningPort, LogEntry
from sandlot.sdk._sync.code.telling import Telling
from tests.unit.sdk.scripted import Reply, Script, events

AT = "2026-01-01T00:00:00Z"
ENTRY = {"execution": "e1", "at": AT, "stream": "stdout", "text": "one\n", "omitted": 0, "running": False}
ERROR = {**ENTRY, "stream": "stderr", "text": "bad\n", "omitted": 7}
PORTS = {"ports": [{"port": 22, "address": "::1"}, {"port": 8000, "address": "0.0.0.0"}]}  # noqa: S104 - what is told
LOGS = {"entries": [ENTRY, ERROR], "more": False}
STREAM: list[tuple[str, dict[str, Any]]] = [
    ("entry", ENTRY),
    ("output", {"execution": "e2", "stream": "stderr", "text": "half"}),
    ("lost", {"execution": "e2", "stream": "stderr", "bytes": 9}),
    ("over", {"execution": "e2"}),
    ("ended", {"sandbox": "sb"}),
]
TOLD = [("stdout", "one\n", 0), ("stderr", "half", 0), ("stderr", "", 9)]


def test_what_listens_and_what_was_written(service: Script) -> None:
    with Client(url=service.url) as client:
        box = Telling(client, "sb")
        service.say(Reply(200, PORTS), Reply(200, LOGS))
        assert box.ports() == [ListeningPort(22, "::1"), ListeningPort(8000, "0.0.0.0")]  # noqa: S104 - what is told
        first, second = box.logs("both")
        assert (first.execution, first.text, first.running, str(first.at)) == ("e1", "one\n", False, "2026-01-01 00:00:00+00:00")
        assert (second.stream, second.omitted_bytes) == ("stderr", 7)
        assert [(seen.path, seen.query) for seen in service.seen] == [("/v1/sandboxes/sb/ports", ""), ("/v1/sandboxes/sb/logs", "stream=both")]


def test_what_is_written_is_followed_to_the_end(service: Script) -> None:
    with Client(url=service.url) as client:
        service.say(events(*STREAM))
        followed = list(Telling(client, "sb").follow_logs("stderr"))
        assert [(entry.stream, entry.text, entry.omitted_bytes) for entry in followed] == TOLD
        assert (followed[1], service.seen[0].query) == (LogEntry("e2", "stderr", "half"), "stream=stderr")
        service.say(events(*STREAM[:-1], cut=True), events(*STREAM[:-1]))
        for _ in range(2):
            with pytest.raises(UnavailableError):
                list(Telling(client, "sb").follow_logs())


def test_the_command_line_shows_it(service: Script, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SANDLOT_URL", service.url)
    monkeypatch.delenv("SANDLOT_API_KEY", raising=False)
    service.say(Reply(200, LOGS))
    assert dispatch(["logs", "sb"]) == 0
    assert capfd.readouterr() == ("one\n", "bad\n")
    service.say(events(*STREAM))
    assert dispatch(["logs", "sb", "--follow", "--json"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(line["stream"], line["text"], line["lost_bytes"]) for line in lines] == TOLD
