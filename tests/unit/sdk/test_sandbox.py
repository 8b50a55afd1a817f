"""Sandbox objects of both clients: what their methods send and read, and what is repeated after a broken connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import anyio
import pytest

from sandlot import AsyncClient, AsyncSandbox, Client, Sandbox, SandboxInfo
from sandlot.sdk import ForbiddenError, Mount, Network, NotFoundError, SnapshotInfo
from sandlot.sdk.converter import structure
from sandlot.sdk.models.snapshots import ForkTree, ForkTreeNode
from tests.unit.sdk.scripted import Reply, Script, problem

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


def test_missing_fields_have_defaults() -> None:
    told = structure(SandboxInfo, {"id": "x", "state": "running"})
    assert (told.on_timeout, told.auto_resume, told.snapshot, told.parent, told.restored) == ("kill", True, None, None, None)


def test_cut_suspend_and_resume_are_repeated(service: Script, sandbox: Sandbox, subtests: pytest.Subtests) -> None:
    rests: tuple[tuple[str, Callable[[Sandbox], object], bytes], ...] = (
        ("pause", lambda sandbox: sandbox.pause(), b""),
        ("resume", lambda sandbox: sandbox.resume(), b"{}"),
        ("resume", lambda sandbox: sandbox.resume(60), b'{"timeout":60}'),
        ("hibernate", lambda sandbox: sandbox.hibernate(), b""),
    )
    for verb, work, body in rests:
        with subtests.test(verb=verb, work=work, body=body):
            service.seen.clear()
            service.say(Reply(gone=True), Reply(200, {**BOX, "metadata": {"heard": verb}}))
            work(sandbox)
            assert [(seen.method, seen.path, seen.body) for seen in service.seen] == [("POST", f"{URL}/{verb}", body)] * 2
            assert sandbox.metadata == {"heard": verb}


def test_cut_snapshot_is_repeated_with_the_same_key(service: Script, sandbox: Sandbox) -> None:
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
    assert first.path == f"{URL}/snapshots"
    assert first.json() == again.json() == {"name": "mine", "kind": "files"}
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]
    sandbox.snapshot(idempotency_key="k")
    assert (service.seen[-1].json(), service.seen[-1].headers["idempotency-key"]) == ({"kind": "memory"}, "k")


def test_last_fork_closes_the_shared_connections(service: Script, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_fork_tree_is_read(service: Script, sandbox: Sandbox) -> None:
    def branch(id_: str, parent: str | None) -> dict[str, object]:
        return {"id": id_, "parent": parent, "state": "running", "name": None, "created_at": AT, "of a later version": 1}

    service.say(Reply(200, {"root": "a", "sandboxes": [branch("a", None), branch("b", "a"), branch("c", "b"), branch("d", "a")]}))
    tree = sandbox.fork_tree()
    assert isinstance(tree, ForkTree)
    assert tree.root == "a"
    assert [each.id for each in tree] == ["a", "b", "c", "d"]
    assert len(tree) == 4
    assert [each.id for each in tree.children("a")] == ["b", "d"]
    assert tree.children("d") == ()
    assert tree.sandboxes[1] == ForkTreeNode("b", "a", "running", None, datetime(2026, 11, 22, 10, tzinfo=UTC))


def test_connect_resumes_suspended_sandboxes(service: Script, subtests: pytest.Subtests) -> None:
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


def test_public_ports_and_masked_host_are_sent_and_returned(service: Script, client: Client) -> None:
    service.say(Reply(201, {**BOX, "public_ports": True, "mask_request_host": "a.example.com"}))
    sandbox = Sandbox.create("base", public_ports=True, mask_request_host="a.example.com", client=client)
    assert service.seen[-1].json() == {"template": "base", "public_ports": True, "mask_request_host": "a.example.com"}
    service.say(Reply(200, {**BOX, "public_ports": True, "mask_request_host": "a.example.com"}), Reply(200, BOX))
    assert (sandbox.info().public_ports, sandbox.info().mask_request_host) == (True, None)
    sandbox.update(public_ports=False, mask_request_host="")
    assert service.seen[-1].json() == {"public_ports": False, "mask_request_host": ""}


def test_all_changes_of_an_update_are_one_request(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, {**BOX, "name": "new"}))
    changed = sandbox.update(timeout=9, idle_timeout=0, on_timeout="pause", auto_resume=True, name="new", metadata={}, cpus=2, memory="1G")
    assert changed.name == "new"
    assert [(seen.method, seen.path) for seen in service.seen] == [("PATCH", URL)]
    assert service.seen[0].json() == {
        "timeout": 9,
        "idle_timeout": 0,
        "on_timeout": "pause",
        "auto_resume": True,
        "name": "new",
        "metadata": {},
        "limits": {"cpus": 2, "memory_bytes": 1 << 30},
    }
    sandbox.update(persistent=True)
    assert service.seen[-1].json() == {"persistent": True}
    sandbox.set_timeout(5)
    assert service.seen[-1].json() == {"timeout": 5}


def test_e2b_names_do_the_same_as_ours(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(200, BOX))
    assert sandbox.sandbox_id == sandbox.id
    assert sandbox.get_info() == sandbox.info()
    service.say(Reply(201, SNAPSHOT))
    assert sandbox.create_snapshot("mine", "files") == sandbox.snapshot("mine", "files")


def test_get_or_create_says_whether_the_sandbox_was_created(service: Script, client: Client) -> None:
    service.say(Reply(201, BOX), Reply(200, BOX))
    assert Sandbox.get_or_create("mine", client=client).was_created
    assert not Sandbox.get_or_create("mine", "base", memory="1G", client=client).was_created
    assert [seen.json() for seen in service.seen] == [
        {"name": "mine", "if_exists": "return"},
        {"name": "mine", "template": "base", "limits": {"memory_bytes": 1 << 30}, "if_exists": "return"},
    ]


def test_network_and_volumes_are_text_or_values(service: Script, client: Client) -> None:
    service.say(Reply(201, BOX))
    for network in ("none", Network("none")):
        Sandbox.create(network=network, client=client)
        assert service.seen[-1].json() == {"network": {"mode": "none"}}
    Sandbox.create(network=["github.com"], client=client)
    assert service.seen[-1].json() == {"network": {"mode": "allowlist", "allow": ["github.com"]}}
    Sandbox.create(volumes={"/a": "sets", "/b": Mount("sets", read_only=True)}, client=client)
    assert service.seen[-1].json() == {"volumes": [{"volume": "sets", "path": "/a"}, {"volume": "sets", "path": "/b", "read_only": True}]}


FORKS = {"sandboxes": [{**BOX, "id": f"sb-{number}"} for number in range(3)]}


def test_end_of_a_fork_batch_kills_all_forks_but_the_promoted_one(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(201, FORKS))
    with sandbox.fork(3) as forks:
        assert [fork.id for fork in forks] == ["sb-0", "sb-1", "sb-2"]
        assert (len(forks), forks[-1].id, [fork.id for fork in forks[1:]]) == (3, "sb-2", ["sb-1", "sb-2"])
        service.say(Reply(200, {"ended": ["sb-0"]}))
        forks[1].promote()
        service.seen.clear()
        service.say(problem(404, "sandbox_not_found"), Reply(204))
    assert [(seen.method, seen.path) for seen in service.seen] == [("DELETE", "/v1/sandboxes/sb-0"), ("DELETE", "/v1/sandboxes/sb-2")]


async def test_async_fork_batch_spares_the_promoted_fork(service: Script, async_sandbox: AsyncSandbox) -> None:
    service.say(Reply(201, FORKS))
    async with async_sandbox.fork(3) as forks:
        service.say(Reply(200, {"ended": []}))
        await forks[0].promote()
        service.seen.clear()
        service.say(Reply(204))
    assert [seen.path for seen in service.seen] == ["/v1/sandboxes/sb-1", "/v1/sandboxes/sb-2"]


def test_fork_that_cannot_be_killed_does_not_spare_the_others(service: Script, sandbox: Sandbox) -> None:
    service.say(Reply(201, FORKS))
    forks = sandbox.fork(3)
    service.seen.clear()
    service.say(problem(403, "forbidden"), Reply(204))
    with pytest.raises(ForbiddenError), forks:
        pass
    assert [seen.path for seen in service.seen] == [f"/v1/sandboxes/sb-{number}" for number in range(3)]


async def test_cancelled_fork_batch_kills_its_forks(service: Script, async_sandbox: AsyncSandbox) -> None:
    service.say(Reply(201, FORKS))
    with anyio.CancelScope() as scope:
        async with async_sandbox.fork(3):
            service.seen.clear()
            service.say(Reply(204))
            scope.cancel()
            await anyio.sleep_forever()
    assert [seen.path for seen in service.seen] == [f"/v1/sandboxes/sb-{number}" for number in range(3)]


async def test_calls_that_return_a_context_are_entered_without_await(service: Script) -> None:
    async with AsyncClient(url=service.url) as client:
        service.say(Reply(201, BOX), Reply(204))
        async with AsyncSandbox.create(client=client) as created:
            assert isinstance(created, AsyncSandbox)
        service.say(Reply(200, BOX), Reply(201, FORKS), Reply(204))
        async with AsyncSandbox.connect("mine", client=client) as connected, connected.fork(3) as forks:
            assert [type(fork) for fork in forks] == [AsyncSandbox] * 3
        assert [seen.method for seen in service.seen] == ["POST", "DELETE", "GET", "POST", *["DELETE"] * 4]


async def test_calls_that_return_a_context_are_awaited_and_run_as_tasks(service: Script) -> None:
    service.say(Reply(201, BOX))
    async with AsyncClient(url=service.url) as client:
        assert (await AsyncSandbox.create(client=client)).id == BOX["id"]
        task = asyncio.create_task(AsyncSandbox.create(client=client))
        assert (await task).id == BOX["id"]
        assert len(await asyncio.gather(*(AsyncSandbox.create(client=client) for _ in range(2)))) == 2
        async with await AsyncSandbox.create(client=client) as entered:
            assert entered.id == BOX["id"]


async def test_error_of_a_call_is_raised_where_it_is_entered(service: Script) -> None:
    service.say(problem(404, "template_not_found"))
    async with AsyncClient(url=service.url) as client:
        with pytest.raises(NotFoundError):
            async with AsyncSandbox.create("none", client=client):
                pytest.fail("the body ran")


def test_preview_urls_hosts_and_tokens_are_returned(service: Script, client: Client) -> None:
    preview = {"url": "http://h/?t", "path_url": "http://d/p/t/", "host": "h", "token": "t", "public": False, "expires_at": "2026-01-02T00:00:00Z"}
    service.say(Reply(201, BOX))
    sandbox = Sandbox.create("base", client=client)
    service.say(*[Reply(200, preview)] * 4)
    assert sandbox.get_url(8000) == "http://h/?t"
    assert sandbox.get_url(8000, path_form=True, expires_in=60) == "http://d/p/t/"
    assert service.seen[-1].json() == {"expires_in": 60}
    assert sandbox.get_host(8000) == "h"
    assert sandbox.get_preview_token(8000) == "t"
    assert service.seen[-1].path == f"/v1/sandboxes/{BOX['id']}/ports/8000/url"
