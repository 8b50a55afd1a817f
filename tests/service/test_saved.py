"""Pause, hibernation, snapshots, forks and promotion through the SDK and HTTP, on gVisor; and what of it a container does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sandlot import ConflictError, NotFoundError, Sandbox, UnsupportedError
from sandlot.model.errors import ErrorCode
from sandlot.sdk import Output
from sandlot.sdk.config import SOCKET
from tests.support.localservice import LocalService, local_service

STATE = "n = 41\nopen('/workspace/kept', 'w').write('kept')"
TICKING = ": > /workspace/ticks; while sleep 0.05; do echo >> /workspace/ticks; done"
PAUSE_S = 0.1


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service({"SANDLOT_ISOLATION_ALLOWED": "gvisor,container"}) as running:
        yield running
        for snapshot in running.client.snapshots.list():
            running.client.snapshots.delete(snapshot.id)


@pytest.fixture(scope="module")
def http(service: LocalService) -> Iterator[httpx.Client]:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / SOCKET)), base_url="http://sandlot", timeout=120) as made:
        yield made


@pytest.fixture
def full(service: LocalService) -> Iterator[Sandbox]:
    """A sandbox with variables, a file and a process; its forks end with it."""
    with service.create(envs={"OWN": "parent"}) as made:
        made.run_code(STATE)
        made.commands.run(TICKING, background=True)
        until_ticked(made)
        yield made
        for branch in made.fork_tree():
            service.client.sandboxes.kill(branch.id)


def ticks(sandbox: Sandbox) -> int:
    return int(sandbox.commands.run("cat /workspace/ticks | wc -l").stdout)


def until_ticked(sandbox: Sandbox) -> None:
    """Return once the process in it has done something more."""
    before = ticks(sandbox)
    while ticks(sandbox) == before:
        time.sleep(PAUSE_S)


def has_it_all(sandbox: Sandbox) -> None:
    """What :func:`full` left in it is there, and lives."""
    assert sandbox.run_code("print(n + 1)").stdout == "42\n"
    assert sandbox.files.read("/workspace/kept") == "kept"
    until_ticked(sandbox)


def draws(sandbox: Sandbox) -> str:
    """Of every source of randomness that code usually asks."""
    return sandbox.run_code("import os, random, uuid; print(os.urandom(8).hex(), random.random(), uuid.uuid4())").stdout


def happened(service: LocalService, sandbox: Sandbox) -> list[str]:
    return [event.type for event in service.client.events.iter(sandbox=sandbox.id)]


def test_hibernated_sandbox_is_woken_by_the_next_request(service: LocalService, full: Sandbox) -> None:
    before = draws(full)
    for _ in range(2):
        full.hibernate()
        assert full.info().state == "hibernated"
    assert full.usage().memory_bytes == 0
    assert full.usage().host_tasks == 0
    has_it_all(full)
    assert full.info().state == "running"
    assert draws(full) != before
    full.pause()
    full.hibernate()
    full.resume(timeout=500)
    assert (full.info().state, full.info().timeout) == ("running", 500)
    has_it_all(full)
    assert happened(service, full) == [
        "sandbox.created",
        "sandbox.hibernated",
        "sandbox.woken",
        "sandbox.paused",
        "sandbox.hibernated",
        "sandbox.woken",
    ]


@pytest.mark.slow
def test_processes_and_cells_continue_over_hibernation_and_run_once(service: LocalService) -> None:
    slowly = "for n in $(seq 20); do echo -n $n' '; sleep 0.1; done; echo done >> /workspace/log"
    counted = "".join(f"{n} " for n in range(1, 21))
    with service.create() as sandbox, ThreadPoolExecutor() as beside:
        background = sandbox.commands.run(slowly, background=True)
        reader = sandbox.commands.run("cat", background=True, stdin=True)
        reader.send_stdin("before ")
        foreground = beside.submit(sandbox.commands.run, slowly)
        cell = beside.submit(sandbox.run_code, "import time\nfor n in range(1, 21):\n    print(n, end=' ')\n    time.sleep(0.1)")
        streamed = beside.submit(lambda: list(sandbox.stream_code("for n in 1 2 3; do sleep 0.5; echo -n $n' '; done", "bash")))
        waited = beside.submit(background.wait)
        while len([info for info in sandbox.commands.list() if info.stdout_bytes]) < 3:
            time.sleep(PAUSE_S)
        sandbox.hibernate()
        with pytest.raises(ConflictError) as cut:  # what would wake it for that would not know whether it is wanted
            foreground.result()
        assert cut.value.code is ErrorCode.SANDBOX_PAUSED
        assert waited.result().stdout == counted
        assert cell.result().stdout == counted
        assert "".join(piece.text for piece in streamed.result() if isinstance(piece, Output)) == "1 2 3 "
        reader.send_stdin("after")
        reader.close_stdin()
        assert reader.wait().stdout == "before after"
        while sandbox.files.read("/workspace/log") != "done\ndone\n":
            time.sleep(PAUSE_S)
        while "running" in (found := {run.id: run.status for run in service.client.executions.list(sandbox=sandbox.id)}).values():
            time.sleep(PAUSE_S)
        assert set(found.values()) == {"exited", "ok"}


@pytest.mark.slow
def test_sandbox_without_auto_resume_is_resumed_explicitly_also_after_its_timeout(service: LocalService) -> None:
    with service.create(auto_resume=False, timeout=600, on_timeout="hibernate") as sandbox:
        sandbox.run_code(STATE)
        sandbox.pause()
        with pytest.raises(ConflictError) as refused:
            sandbox.run_code("n")
        assert refused.value.code is ErrorCode.SANDBOX_PAUSED
        assert "Resume the sandbox" in refused.value.hint
        assert Sandbox.connect(sandbox.id, client=service.client).run_code("print(n)").stdout == "41\n"
        sandbox.set_timeout(1)
        while sandbox.info().state != "hibernated":
            time.sleep(PAUSE_S)
        again = Sandbox.connect(sandbox.id, resume=False, client=service.client)
        with pytest.raises(ConflictError):
            again.commands.run("true")
        assert Sandbox.connect(sandbox.id, timeout=300, client=service.client).run_code("print(n)").stdout == "41\n"
        info = sandbox.info()
        assert (info.state, info.timeout, info.on_timeout) == ("running", 300, "hibernate")
        assert happened(service, sandbox) == [f"sandbox.{what}" for what in ("created", "paused", "resumed", "updated", "hibernated", "woken")]


@pytest.mark.slow
def test_snapshot_starts_sandboxes_also_after_its_source_is_killed(service: LocalService, full: Sandbox) -> None:
    taken = full.snapshot("whole")
    has_it_all(full)
    assert (taken.name, taken.kind, taken.sandbox, taken.template, taken.problem) == ("whole", "memory", full.id, "base", None)
    assert taken.size_bytes > 1 << 20
    with pytest.raises(ConflictError):
        full.snapshot("whole")
    full.run_code("n = 0")
    full.kill()
    made = [Sandbox.create(snapshot=name, envs={"OWN": "child"}, timeout=100, client=service.client) for name in ("whole", taken.id)]
    for sandbox in made:
        has_it_all(sandbox)
        assert sandbox.commands.run("echo $OWN").stdout == "child\n"
        info = sandbox.info()
        assert (info.snapshot, info.restored, info.template, info.timeout) == (taken.id, "memory", "base", 100)
    assert draws(made[0]) != draws(made[1])
    assert service.client.snapshots.get("whole") in service.client.snapshots.list()
    service.client.snapshots.delete("whole")
    for gone in (lambda: service.client.snapshots.get(taken.id), lambda: Sandbox.create(snapshot=taken.id, client=service.client)):
        with pytest.raises(NotFoundError) as refused:
            gone()
        assert refused.value.code is ErrorCode.SNAPSHOT_NOT_FOUND
    has_it_all(made[0])
    for sandbox in made:
        sandbox.kill()
    told = [event for event in service.client.events.iter() if event.type.startswith("snapshot.")]
    assert [event.type for event in told if event.data["snapshot"] == taken.id] == ["snapshot.created", "snapshot.deleted"]


def test_forks_continue_from_their_parent_and_are_independent(service: LocalService, full: Sandbox) -> None:
    forks, again = [full.fork(2, name="f", metadata={"a": "b"}, envs={"OWN": "fork"}, timeout=100, idempotency_key="k") for _ in range(2)]
    assert [fork.id for fork in forks] == [fork.id for fork in again]
    assert len(full.fork_tree()) == 3
    with pytest.raises(ConflictError):
        full.fork(1, idempotency_key="k")
    for fork in forks:
        has_it_all(fork)
        assert fork.commands.run("echo $OWN; hostname").stdout == f"fork\n{fork.id}\n"
    infos = [fork.info() for fork in forks]
    assert {(info.parent, info.restored, info.timeout) for info in infos} == {(full.id, "memory", 100)}
    assert [(info.name, dict(info.metadata)) for info in infos] == [(f"f-{number}", {"a": "b"}) for number in (1, 2)]
    has_it_all(full)
    assert len({draws(sandbox) for sandbox in (full, *forks)}) == 3
    forks[0].run_code("n = 0")
    forks[0].files.write("/workspace/kept", "changed")
    for sandbox in (full, *forks[1:]):
        has_it_all(sandbox)
    (grandchild,) = forks[0].fork()
    assert grandchild.run_code("print(n)").stdout == "0\n"
    tree = forks[1].fork_tree()
    assert tree.root == full.id
    assert {branch.id for branch in tree.children(full.id)} == {fork.id for fork in forks}
    assert [branch.id for branch in tree.children(forks[0].id)] == [grandchild.id]
    assert set(forks[1].promote()) == {forks[0].id, grandchild.id}
    assert forks[1].promote() == []
    for sandbox in (full, forks[1]):
        has_it_all(sandbox)
    assert {branch.state for branch in full.fork_tree() if branch.id not in {full.id, forks[1].id}} == {"stopped"}
    assert "sandbox.forked" in happened(service, full)
    assert "sandbox.promoted" in happened(service, forks[1])


@pytest.mark.slow
def test_client_that_goes_away_leaves_no_half_made_snapshot_or_fork(service: LocalService, http: httpx.Client, full: Sandbox) -> None:
    for verb, body in (("snapshots", {"name": "half"}), ("forks", {"count": 2})):
        with pytest.raises(httpx.ReadTimeout):
            http.post(f"/v1/sandboxes/{full.id}/{verb}", json=body, timeout=0.05)
        has_it_all(full)
    full.pause()  # carried out once what was begun before is over
    for snapshot in service.client.snapshots.list():
        with Sandbox.create(snapshot=snapshot.id, client=service.client) as made:
            has_it_all(made)
        service.client.snapshots.delete(snapshot.id)
    has_it_all(full)
    alive = [branch for branch in full.fork_tree() if branch.state == "running"]
    assert len(alive) in {1, 3}  # all of the forks, or none
    assert {info.id for info in service.client.sandboxes.list()} == {branch.id for branch in alive}


@pytest.mark.slow
def test_container_pauses_keeps_files_and_refuses_hibernation_snapshot_of_memory_and_fork(service: LocalService) -> None:
    with service.create(isolation="container") as sandbox:
        sandbox.run_code(STATE)
        sandbox.commands.run("mkdir -p /workspace/a && ln -s ../kept /workspace/a/link")
        sandbox.pause()
        assert sandbox.info().state == "paused"
        assert sandbox.run_code("print(n)").stdout == "41\n"
        for cannot in (sandbox.hibernate, sandbox.snapshot, sandbox.fork):
            with pytest.raises(UnsupportedError) as refused:
                cannot()
            assert refused.value.fields["isolation"] == "container"
            assert "gvisor" in str(refused.value)
        assert sandbox.run_code("print(n)").stdout == "41\n"
        assert happened(service, sandbox) == ["sandbox.created", "sandbox.paused", "sandbox.resumed"]
        taken = sandbox.snapshot(kind="files")
        assert (taken.kind, taken.isolation, taken.name) == ("files", "container", None)
    with Sandbox.create(snapshot=taken.id, client=service.client) as other:
        assert other.files.read("/workspace/a/link") == "kept"
        assert other.run_code("n").error is not None
        assert (other.info().restored, other.isolation) == ("files", "container")
    service.client.snapshots.delete(taken.id)
