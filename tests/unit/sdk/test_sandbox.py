"""Rests, snapshots and forks by both clients: what is sent, what is read, and what is said again where a connection broke."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from sandlot import Client, Sandbox, SandboxInfo
from sandlot.sdk import SnapshotInfo
from sandlot.sdk.converter import structure
from sandlot.sdk.models.snapshots import ForkTree, ForkTreeNode
from tests.unit.sdk.scripted import Reply, Script

BOX = {"id": "sb-abcd-abcdefghijklmnop", "state": "running", "template": "base", "on_timeout": "pause", "auto_resume": False}
URL = f"/v1/sandboxes/{BOX['id']}"
AT = "2026-11-22T10:00:00Z"
SNAPSHOT = {
    "id": "snap-abcd-abcdefghijklmnop",
    "name": "mine",
    "kind": "files",
    "sandbox": BOX["id"],
    "template": "base",
    "isolation": "gvisor",
    "network": {"mode": "none"},
    "size_bytes": 5,
    "created_at": AT,
    "node": "abcd",
}


@pytest.fixture
def sandbox(service: Script) -> Iterator[Sandbox]:
    service.say(Reply(201, BOX))
    with Client(url=service.url) as client:
        made = Sandbox.create(client=client)
        service.seen.clear()
        yield made


def test_a_service_before_rests_is_understood() -> None:
    told = structure(SandboxInfo, {"id": "x", "state": "running"})
    assert (told.on_timeout, told.auto_resume, told.snapshot, told.parent, told.restored) == ("kill", True, None, None, None)


def test_a_rest_is_one_request_that_is_sent_again_where_it_was_cut(service: Script, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    rests: tuple[tuple[str, Callable[[Sandbox], object], bytes], ...] = (
        ("pause", lambda sandbox: sandbox.pause(), b""),
        ("resume", lambda sandbox: sandbox.resume(), b"{}"),
        ("resume", lambda sandbox: sandbox.resume(60), b'{"timeout":60}'),
        ("hibernate", lambda sandbox: sandbox.hibernate(), b""),
        ("wake", lambda sandbox: sandbox.wake(timeout=5), b'{"timeout":5}'),
    )
    for verb, work, body in rests:
        with subtests.test(verb=verb, work=work, body=body):
            service.seen.clear()
            service.say(Reply(gone=True), Reply(200, {**BOX, "metadata": {"heard": verb}}))
            work(sandbox)
            assert [(seen.method, seen.path, seen.body) for seen in service.seen] == [("POST", f"{URL}/{verb}", body)] * 2
            assert sandbox.metadata == {"heard": verb}


def test_a_snapshot_is_taken_once_however_often_it_is_asked_for(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(gone=True), Reply(201, SNAPSHOT))
    taken = sandbox.snapshot("mine", "files")
    assert taken == SnapshotInfo(
        id="snap-abcd-abcdefghijklmnop",
        name="mine",
        kind="files",
        sandbox=sandbox.id,
        template="base",
        isolation="gvisor",
        size_bytes=5,
        created_at=datetime(2026, 11, 22, 10, tzinfo=UTC),
        node="abcd",
    )
    first, again = service.seen
    assert first.path == f"{URL}/snapshot"
    assert first.json() == again.json() == {"name": "mine", "kind": "files"}
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    sandbox.snapshot(idempotency_key="k")
    assert (service.seen[-1].json(), service.seen[-1].headers["idempotency-key"]) == ({"kind": "memory"}, "k")


def test_connections_are_closed_by_the_last_of_a_family(service: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_URL", service.url)
    closed: list[Client] = []
    close = Client.close

    def closing(client: Client) -> None:
        closed.append(client)
        close(client)

    monkeypatch.setattr(Client, "close", closing)
    service.say(Reply(201, BOX))
    sandbox = Sandbox.create()
    service.say(Reply(201, {"sandboxes": [{**BOX, "id": "sb-1"}]}))
    (fork,) = sandbox.fork()
    service.say(Reply(201, {"sandboxes": [{**BOX, "id": "sb-2"}]}))
    (grandchild,) = fork.fork()
    service.say(Reply(204))
    sandbox.kill()
    grandchild.close()
    assert closed == []
    fork.kill()
    assert len(closed) == 1


def test_a_tree_is_read_and_walked(service: Script, sandbox: Sandbox) -> None:
    def branch(id_: str, parent: str | None) -> dict[str, object]:
        return {"id": id_, "parent": parent, "state": "running", "name": None, "created_at": AT, "of a later version": 1}

    service.say(Reply(200, {"root": "a", "sandboxes": [branch("a", None), branch("b", "a"), branch("c", "b"), branch("d", "a")]}))
    tree = sandbox.tree()
    assert isinstance(tree, ForkTree)
    assert tree.root == "a"
    assert [each.id for each in tree] == ["a", "b", "c", "d"]
    assert len(tree) == 4
    assert [each.id for each in tree.children("a")] == ["b", "d"]
    assert tree.children("d") == ()
    assert tree.sandboxes[1] == ForkTreeNode("b", "a", "running", None, datetime(2026, 11, 22, 10, tzinfo=UTC))


def test_connecting_resumes_what_rests(service: Script, subtests: pytest.Subtests) -> None:
    for state in ("pausing", "paused", "hibernating", "hibernated", "waking"):
        with subtests.test(state=state):
            service.seen.clear()
            found, running = Reply(200, {**BOX, "state": state}), Reply(200, BOX)
            service.say(found, running, found, running, found, found, running)
            with Client(url=service.url) as client:
                Sandbox.connect(str(BOX["id"]), client=client)
                Sandbox.connect(str(BOX["id"]), timeout=9, client=client)
                Sandbox.connect(str(BOX["id"]), resume=False, client=client)
                Sandbox.connect(str(BOX["id"]), timeout=9, resume=False, client=client)
            asked = [(seen.method, seen.path, seen.body) for seen in service.seen]
            look = ("GET", URL, b"")
            assert asked == [
                *(look, ("POST", f"{URL}/resume", b"{}")),
                *(look, ("POST", f"{URL}/resume", b'{"timeout":9}')),
                look,
                *(look, ("PATCH", URL, b'{"timeout":9}')),
            ]
