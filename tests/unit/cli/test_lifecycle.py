"""``sandlot pause``, ``resume``, ``hibernate``, ``fork``, ``fork-tree`` and ``promote``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script, Seen, problem

BOX: dict[str, Any] = {"id": "sb-1", "state": "running", "template": "base", "created_at": "2026-11-22T00:00:00+00:00"}


def found(then: Reply | Callable[[Seen], Reply]) -> Callable[[Seen], Reply]:
    """A service that knows any sandbox, and what it answers to everything else."""

    def answer(seen: Seen) -> Reply:
        if seen.method == "GET" and seen.path.startswith("/v1/sandboxes/sb-") and seen.path.count("/") == 3:
            return Reply(200, {**BOX, "id": seen.path.rpartition("/")[2], "state": "paused"})
        return then(seen) if callable(then) else then

    return answer


def asked(there: Script) -> list[tuple[str, str, Any]]:
    """What was asked beside looks at sandboxes."""
    return [(seen.method, seen.path, seen.json() if seen.body else None) for seen in there.seen if seen.method != "GET" or seen.path.count("/") != 3]


def test_other_sandboxes_are_processed_after_a_failure(there: Script, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for words, verb, body in (
        ("pause", "pause", None),
        ("hibernate", "hibernate", None),
        ("resume", "resume", {}),
        ("resume --timeout 60", "resume", {"timeout": 60}),
    ):
        with subtests.test(words=words, verb=verb, body=body):
            there.seen.clear()
            there.say(found(lambda seen: Reply(200, BOX) if "sb-2" in seen.path else problem(409, "conflict")))
            assert dispatch([*words.split(), "sb-1", "sb-2"]) == 1
            assert capsys.readouterr() == ("sb-2\n", "sandlot: sb-1: it is conflict do this\n")
            assert asked(there) == [("POST", f"/v1/sandboxes/sb-{number}/{verb}", body) for number in (1, 2)]
            assert dispatch([*words.split(), "sb-2"]) == 0
            capsys.readouterr()


def test_fork_prints_the_ids(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(found(Reply(201, {"sandboxes": [{**BOX, "id": "sb-2"}, {**BOX, "id": "sb-3"}]})))
    assert dispatch(["fork", "sb-1", "--count", "2", "--name", "n", "-m", "a=b", "-e", "A=1", "--timeout", "60"]) == 0
    assert capsys.readouterr().out == "sb-2\nsb-3\n"
    body = {"count": 2, "name": "n", "metadata": {"a": "b"}, "env": {"A": "1"}, "timeout": 60}
    assert asked(there) == [("POST", "/v1/sandboxes/sb-1/forks", body)]
    assert dispatch(["fork", "sb-1"]) == 0
    assert asked(there)[-1][2] == {"count": 1}
    capsys.readouterr()
    assert dispatch(["fork", "sb-1", "--json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["sb-2", "sb-3"]
    assert dispatch(["fork", "sb-1", "--count", "101"]) == 2


def test_fork_tree_shows_depths(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    def branch(id_: str, parent: str | None) -> dict[str, Any]:
        return {"id": id_, "parent": parent, "state": "running", "name": None, "created_at": BOX["created_at"]}

    branches = [branch("sb-1", None), branch("sb-2", "sb-1"), branch("sb-4", "sb-1"), branch("sb-3", "sb-2")]
    there.say(found(Reply(200, {"root": "sb-1", "sandboxes": branches})))
    assert dispatch(["fork-tree", "sb-2"]) == 0
    drawn = [line.partition("  -")[0].rstrip() for line in capsys.readouterr().out.splitlines()[1:]]
    assert drawn == ["sb-1", "  sb-2 *", "    sb-3", "  sb-4"]
    assert dispatch(["fork-tree", "sb-2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["root"] == "sb-1"
