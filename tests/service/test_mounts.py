"""Volumes of sandboxes that run: attached, used, refused while in use, detached; through rest, forks, snapshots and kills of the service.

The tests leave nothing on the host: no mount in any namespace, no loop device (``place``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.lifecycle import mounts
from sandlot.core.lifecycle.supervisor import SandboxSupervisor
from sandlot.core.node import Node
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.sandbox import Sandbox
from sandlot.host.disk_images import loops_below
from sandlot.link.payload import INTERPRETER_ARGV
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, HostError, NotFoundError, SandlotError, TimeoutExceededError, UnsupportedError
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import ProcessSpec, SnapshotKind, User, VolumeMount
from sandlot.server.composition import RunningService
from tests.service.test_volumes import all_let_go, clear, fails, made
from tests.support.saving import BASE, IN_CONTAINER, killed_at, make, real_service, shell
from tests.support.until import until

pytestmark = pytest.mark.slow

DATA = VolumeMount("data", "/data")
OTHER = VolumeMount("other", "/srv/other", read_only=True)


@pytest.fixture(scope="module")
async def sandbox(core_service: RunningService) -> Sandbox:
    """A sandbox of several tests, each of which finds it without volumes."""
    return await make(core_service)


@pytest.fixture
async def service(core_service: RunningService, sandbox: Sandbox) -> AsyncGenerator[RunningService]:
    """The service of all tests, without what the test before made."""
    yield core_service
    await clear(core_service, sandbox)


async def attach(service: RunningService, sandbox: Sandbox, mount: VolumeMount = DATA) -> None:
    assert await service.internals.mounts.attach(OPERATOR, sandbox.id, mount) is sandbox


async def detach(service: RunningService, sandbox: Sandbox, which: str = "/data") -> None:
    assert await service.internals.mounts.detach(OPERATOR, sandbox.id, which) is sandbox


async def is_mounted(node: Node, sandbox: Sandbox, path: str = "/data") -> bool:
    """Whether something is mounted there, inside."""
    return f" {path} 9p " in await shell(node, sandbox, "cat /proc/mounts")


@asynccontextmanager
async def running(node: Node, command: str, sandbox: Sandbox, user: User = User.USER) -> AsyncIterator[None]:
    """A command that says ``ready`` and goes on until the end of the block."""
    started = (
        await node.processes.launch(
            OPERATOR, sandbox.id, ProcessSpec(("/bin/sh", "-c", f"{command}\ntouch /tmp/ready; sleep 1000"), user=user, timeout_s=None)
        )
    ).process

    async def ready() -> bool:
        return "ready" in await shell(node, sandbox, "ls /tmp")

    await until(ready)
    try:
        yield
    finally:
        await node.processes.signal(OPERATOR, sandbox.id, started, 9)
        await shell(node, sandbox, "rm -f /tmp/ready")


async def test_volume_is_attached_to_a_running_sandbox_and_detached(service: RunningService, state_dir: Path) -> None:
    id_ = await made(service)
    await made(service, "other")
    sandbox = await make(service)
    await attach(service, sandbox)
    await attach(service, sandbox)  # so it is
    assert await shell(service.node, sandbox, "stat -c %U /data; echo 1 > /data/word; cat /data/word") == "user\n1\n"
    await attach(service, sandbox, OTHER)
    assert "Read-only" in await fails(service.node, sandbox, "touch /srv/other/x", User.ROOT)
    assert [(each.requested_as, each.path, each.read_only) for each in sandbox.spec.volumes] == [
        ("data", "/data", False),
        ("other", "/srv/other", True),
    ]
    assert (await service.node.volumes.get(OPERATOR, "data")).attached == (sandbox.id,)
    await detach(service, sandbox)
    assert await shell(service.node, sandbox, "ls -A /data /.sandlot/volumes/0") == "/.sandlot/volumes/0:\n\n/data:\n"
    await service.node.volumes.delete(OPERATOR, id_)
    await until(lambda: _loops(state_dir, 1))
    await made(service)
    await attach(service, sandbox)  # in the place of the one before
    assert await shell(service.node, sandbox, "ls -A /data; echo new > /data/word; cat /data/word") == "new\n"
    await detach(service, sandbox, "other")
    await detach(service, sandbox, sandbox.spec.volumes[0].volume)
    assert sandbox.spec.volumes == ()
    await all_let_go(state_dir)
    events = (await service.node.history.events(OPERATOR, sandbox=sandbox.id)).items
    assert [each.event.data["changed"] for each in events if each.event.type == "sandbox.updated"] == [["volumes"]] * 6


async def _loops(folder: Path, number: int) -> bool:
    return len(loops_below(folder / "volumes")) == number


IN_USE = {
    "open for writing": "exec 3>>/data/word",
    "open for reading": "exec 3</data/word",
    "working folder": "cd /data/folder",
    "a program of it runs": "cp /bin/sleep /data/sleep; /data/sleep 1000 &",
}


async def test_volume_in_use_inside_is_not_detached(service: RunningService, sandbox: Sandbox, state_dir: Path) -> None:
    await made(service)

    async def let_go() -> bool:
        try:
            await detach(service, sandbox)
        except ConflictError:
            return False
        return True

    await attach(service, sandbox)
    await shell(service.node, sandbox, "echo 1 > /data/word; mkdir -p /data/folder")
    for use, command in IN_USE.items():
        async with running(service.node, command, sandbox):
            with pytest.raises(ConflictError, match="in use"):
                await detach(service, sandbox)
            assert await shell(service.node, sandbox, "cat /data/word") == "1\n", use
            assert [(each.path, each.changing) for each in sandbox.spec.volumes] == [("/data", False)], use
            with pytest.raises(ConflictError):
                await service.node.volumes.delete(OPERATOR, "data")
        await shell(service.node, sandbox, "pkill -x sleep; true")
    await until(let_go)
    await service.node.volumes.delete(OPERATOR, "data")
    await all_let_go(state_dir)


async def test_detached_volume_cannot_be_written_from_inside(service: RunningService, sandbox: Sandbox) -> None:
    await made(service)
    await attach(service, sandbox)
    # By the hub, past what the guest looks at; and by another name for it.
    hidden = "import os,time; f = os.open('/.sandlot/volumes/0/word', os.O_WRONLY | os.O_CREAT); open('/tmp/ready', 'w'); time.sleep(1000)"
    bound = "import ctypes,os; os.mkdir('/tmp/x'); print(ctypes.CDLL(None).mount(b'/data', b'/tmp/x', None, 4096, None))"
    undone = "import ctypes; print(ctypes.CDLL(None).umount2(b'/tmp/x', 2))"
    started = (
        await service.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec((*INTERPRETER_ARGV, "-c", hidden), user=User.ROOT, timeout_s=None))
    ).process
    await until(lambda: _there(service.node, sandbox, "/tmp/ready"))
    with pytest.raises(ConflictError, match="in use"):
        await detach(service, sandbox)
    assert await is_mounted(service.node, sandbox)
    await service.node.processes.signal(OPERATOR, sandbox.id, started, 9)
    await until(lambda: _ended(service.node, sandbox, "time.sleep"))
    assert "0" in await _root(service.node, sandbox, bound)
    with pytest.raises(ConflictError, match="in use"):
        await detach(service, sandbox)
    await _root(service.node, sandbox, undone)
    await detach(service, sandbox)
    other = await make(service)
    await attach(service, other)
    await shell(service.node, other, "echo other > /data/mine")
    await fails(service.node, sandbox, "echo x > /.sandlot/volumes/0/mine", User.ROOT)
    assert await shell(service.node, other, "cat /data/mine; cat /data/word") == "other\n"


async def _there(node: Node, sandbox: Sandbox, path: str) -> bool:
    return await shell(node, sandbox, f"ls {path} 2>/dev/null || true") != ""


async def _ended(node: Node, sandbox: Sandbox, word: str) -> bool:
    return word not in await shell(node, sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


async def _root(node: Node, sandbox: Sandbox, text: str) -> str:
    done = await node.processes.run(OPERATOR, sandbox.id, ProcessSpec((*INTERPRETER_ARGV, "-c", text), user=User.ROOT, timeout_s=60))
    assert done.outcome.exit_code == 0, done.stderr.text()
    return done.stdout.text()


async def test_files_that_were_only_read_do_not_keep_a_volume_in_use(service: RunningService, sandbox: Sandbox, state_dir: Path) -> None:
    await made(service)
    await attach(service, sandbox)
    deep = "/data/" + "/".join("abcdefghijkl")
    await shell(
        service.node,
        sandbox,
        f"mkdir -p {deep} /data/wide; echo 1 > {deep}/word; i=0; while [ $i -lt 300 ]; do echo $i > /data/wide/$i; i=$((i+1)); done",
    )
    await shell(service.node, sandbox, f"find /data -type f -exec cat {{}} + > /dev/null; python3 -c \"import os; os.listdir('{deep}')\"")
    await detach(service, sandbox)
    await service.node.volumes.delete(OPERATOR, "data")
    await all_let_go(state_dir)


async def test_refused_attach_changes_nothing(service: RunningService) -> None:
    for name in ("data", "other", "third"):
        await made(service, name)
    sandbox = await make(service)
    await attach(service, sandbox)
    await shell(service.node, sandbox, "echo kept > /workspace/file")
    for mount, error in (
        (VolumeMount("nowhere", "/x"), NotFoundError),
        (VolumeMount("data", "/elsewhere"), ConflictError),
        (replace(DATA, read_only=True), ConflictError),
        (VolumeMount("other", "/data"), ConflictError),
        (VolumeMount("other", "/data/below"), ConflictError),
        (VolumeMount("other", "/workspace/file"), SandlotError),
    ):
        with pytest.raises(error):
            await attach(service, sandbox, mount)
        assert [each.requested_as for each in sandbox.spec.volumes] == ["data"]
    for which in ("/elsewhere", "other", "/", ""):
        with pytest.raises(NotFoundError) as absent:
            await detach(service, sandbox, which)
        assert absent.value.code is ErrorCode.VOLUME_NOT_FOUND
    with pytest.raises(NotFoundError):
        await service.internals.mounts.attach(OPERATOR, "sb-aaaa-aaaaaaaaaaaaaaaa", DATA)
    assert (await service.node.volumes.get(OPERATOR, "other")).attached == ()
    await service.node.volumes.delete(OPERATOR, "other")
    await attach(service, sandbox, VolumeMount("third", "/third"))
    assert (await shell(service.node, sandbox, "cat /workspace/file; echo 3 > /third/x; cat /third/x")).split() == ["kept", "3"]
    container = await make(service, IN_CONTAINER)
    for work in (attach(service, container), detach(service, container)):
        with pytest.raises(UnsupportedError, match="container"):
            await work
    await service.internals.manager.kill(OPERATOR, sandbox.id)
    with pytest.raises(SandlotError):
        await attach(service, sandbox)


async def test_attached_volume_survives_pause_and_hibernation(service: RunningService, sandbox: Sandbox) -> None:
    await made(service)
    await made(service, "other")
    await service.internals.manager.pause(OPERATOR, sandbox.id)
    await attach(service, sandbox)
    await attach(service, sandbox, OTHER)
    assert await shell(service.node, sandbox, "echo 1 >> /data/word; cat /data/word") == "1\n"
    await detach(service, sandbox)  # the other one stays in the second place
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    await service.internals.manager.resume(OPERATOR, sandbox.id)
    assert (await is_mounted(service.node, sandbox, "/srv/other"), await is_mounted(service.node, sandbox)) == (True, False)
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    await attach(service, sandbox)
    assert await shell(service.node, sandbox, "echo 2 >> /data/word; cat /data/word") == "1\n2\n"
    await service.internals.manager.pause(OPERATOR, sandbox.id)
    await detach(service, sandbox, "other")
    sleeper = await make(service, replace(BASE, auto_resume=False))
    await service.internals.manager.pause(OPERATOR, sleeper.id)
    with pytest.raises(ConflictError) as rests:
        await attach(service, sleeper)
    assert rests.value.code is ErrorCode.SANDBOX_PAUSED


async def test_attached_volume_is_treated_like_others_by_forks_and_snapshots(service: RunningService) -> None:
    await made(service)
    sandbox = await make(service)
    await attach(service, sandbox)
    await shell(service.node, sandbox, "echo 1 > /data/word")
    with pytest.raises(ConflictError, match="share_volumes"):
        await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams())
    await made(service, "other")
    async with mounts.pin_mounts(sandbox):
        for work in (attach(service, sandbox, OTHER), detach(service, sandbox)):
            with pytest.raises(ConflictError, match="forked"):
                await work
    await service.internals.manager.pause(OPERATOR, sandbox.id)
    sandbox.spec = replace(sandbox.spec, volumes=(replace(sandbox.spec.volumes[0], changing=True),))
    with pytest.raises(ConflictError, match="not completely attached"):
        await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams(share_volumes=True))
    with pytest.raises(ConflictError, match="not completely attached"):
        await service.node.snapshots.create(OPERATOR, sandbox.id, name="half", kind=SnapshotKind.MEMORY)
    await service.internals.manager.resume(OPERATOR, sandbox.id)
    assert [each.changing for each in sandbox.spec.volumes] == [False]
    (child,) = await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams(share_volumes=True))
    assert await shell(service.node, child, "cat /data/word; echo 2 > /data/word") == "1\n"
    await detach(service, sandbox)
    assert not await is_mounted(service.node, sandbox)
    assert await shell(service.node, child, "cat /data/word") == "2\n"
    (free,) = await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams())
    assert free.spec.volumes == ()
    assert await shell(service.node, free, "ls -A /data") == ""
    await attach(service, free, replace(DATA, read_only=True))
    readers = await service.internals.forks.create(OPERATOR, free.id, ForkParams(count=2))
    for reader in readers:
        assert await shell(service.node, reader, "cat /data/word") == "2\n"
        assert "Read-only" in await fails(service.node, reader, "touch /data/x")
    assert len((await service.node.volumes.get(OPERATOR, "data")).attached) == 4
    taken = await service.node.snapshots.create(OPERATOR, child.id, name="with", kind=SnapshotKind.MEMORY)
    assert [each.path for each in taken.spec.volumes] == ["/data"]
    await detach(service, child)
    again = await make(service, replace(BASE, snapshot="with"))
    assert not await is_mounted(service.node, again)
    await attach(service, again, replace(DATA, path="/elsewhere"))
    assert await shell(service.node, again, "ls -A /data; cat /elsewhere/word") == "2\n"


async def test_unfinished_attach_is_finished_by_the_next_operation(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    await made(service)
    sandbox = await make(service)

    async def silent(_sandbox: Sandbox, **request: object) -> dict[str, Any]:
        if "unbind_if_unused" in request:
            raise TimeoutExceededError("It does not answer.", code=ErrorCode.TIMEOUT)
        return dict(await really(_sandbox, **request))

    async def full(*_: object) -> None:
        raise HostError("The disk is full.", code=ErrorCode.HOST_NOT_READY)

    really = mounts.ask
    with monkeypatch.context() as patched:
        patched.setattr(mounts, "ask", silent)
        patched.setattr(SandboxRecorder, "save_update", full)
        with pytest.raises(HostError, match="full"):
            await attach(service, sandbox)
        assert [each.changing for each in sandbox.spec.volumes] == [True]
    (child,) = await service.internals.forks.create(OPERATOR, sandbox.id, ForkParams(share_volumes=True))
    assert [each.changing for each in (*sandbox.spec.volumes, *child.spec.volumes)] == [False, False]
    assert await shell(service.node, sandbox, "echo 1 > /data/word") == ""
    assert await shell(service.node, child, "cat /data/word") == "1\n"
    await detach(service, sandbox)


async def test_concurrent_attaches_are_done_one_after_the_other(service: RunningService, sandbox: Sandbox) -> None:
    names = [f"v{number}" for number in range(9)]
    for name in names:
        await made(service, name)
    done = await asyncio.gather(*(attach(service, sandbox, VolumeMount(name, f"/mnt/{name}")) for name in names), return_exceptions=True)
    assert [type(each) for each in done].count(ConflictError) == 1  # eight it may have
    assert sorted(each.slot or 0 for each in sandbox.spec.volumes) == list(range(8))
    assert (await shell(service.node, sandbox, "for v in /mnt/*; do echo ${v##*/} > $v/name; done; cat /mnt/*/name")).split() == names[:8]
    await asyncio.gather(*(detach(service, sandbox, f"/mnt/{name}") for name in names[:8]))
    assert sandbox.spec.volumes == ()
    assert "/mnt/" not in await shell(service.node, sandbox, "cat /proc/mounts")


def soaks(deed: str, *steps: str) -> list[Any]:
    return [pytest.param(deed, step, marks=pytest.mark.soak) for step in steps]


@pytest.mark.parametrize(
    "deed, step",
    [
        *(("attach", "seen"), ("detach", "seen")),
        *soaks("attach", "intended", "mounted", "asking", "asked", "recorded"),
        *soaks("detach", "intended", "asking", "asked", "recorded"),
    ],
)
async def test_service_killed_during_an_attach_or_detach_leaves_a_consistent_record(deed: str, step: str) -> None:
    with killed_at("halfmoved", deed, step) as (folder, told):
        assert "done" not in told
        async with real_service(folder) as service:
            sandbox = service.internals.registry.find(told["box"], OPERATOR)
            await sandbox.wait_reachable()
            await sandbox.operations.submit(_nothing)  # after what was begun by the service before
            assert [each for each in sandbox.spec.volumes if each.changing] == []
            has = [each.path for each in sandbox.spec.volumes]
            assert has == ([] if (deed, step) == ("detach", "recorded") else ["/data"])
            assert (await service.node.volumes.get(OPERATOR, "data")).attached == ((sandbox.id,) if has else ())
            assert (await shell(service.node, sandbox, "cat /proc/mounts")).count(" /data 9p ") == len(has)
            await attach(service, sandbox)
            assert len(loops_below(folder / "volumes")) == 1
            assert await shell(service.node, sandbox, "cat /data/word 2>/dev/null || true") == ("kept\n" if deed == "detach" else "")
            assert await shell(service.node, sandbox, "echo more > /data/more; cat /data/more") == "more\n"
            await detach(service, sandbox)
            assert not await is_mounted(service.node, sandbox)
            await service.node.volumes.delete(OPERATOR, told["volume"])
            await all_let_go(folder)


async def _nothing(_supervisor: SandboxSupervisor) -> None:
    return None
