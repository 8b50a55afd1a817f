"""Volumes on gVisor and in containers: seen, sized, read-only, shared, followed into sleep, and there when every sandbox is gone.

The tests leave nothing on the host: no mount in any namespace, no loop device (``place``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.host.disk_images import loops_below
from sandlot.link.payload import INTERPRETER_ARGV
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import MIB, ProcessSpec, SnapshotKind, User, VolumeMount
from sandlot.sdk import Mount
from sandlot.server.composition import RunningService
from tests.support.localservice import local_service
from tests.support.saving import BASE, IN_CONTAINER, cell, make, shell
from tests.support.traces import sandbox_pids, settle
from tests.support.until import until

SIZE = 16 * MIB
DATA = VolumeMount("data", "/data")
READ_ONLY = replace(DATA, read_only=True)
WITH = replace(BASE, volumes=(DATA,))
ISOLATIONS = pytest.mark.parametrize("base", [pytest.param(BASE, id="gvisor"), pytest.param(IN_CONTAINER, id="container", marks=pytest.mark.slow)])
MOSTLY_ON_GVISOR = pytest.mark.parametrize(
    "base", [pytest.param(BASE, id="gvisor"), pytest.param(IN_CONTAINER, id="container", marks=pytest.mark.soak)]
)
"""For what src/sandlot/testing/drivers/volumes.py shows of both isolations."""


@pytest.fixture
async def service(core_service: RunningService) -> AsyncGenerator[RunningService]:
    """The service of all tests, without what the test before made."""
    yield core_service
    await clear(core_service)


async def clear(service: RunningService, *kept: Sandbox) -> None:
    """Remove all snapshots, volumes and sandboxes but for the sandboxes that are kept; these have no volume afterwards."""
    for sandbox in service.internals.registry.list(OPERATOR):
        if sandbox not in kept:
            await service.internals.manager.kill(OPERATOR, sandbox.id)
    for sandbox in kept:
        for mount in sandbox.spec.volumes:
            await service.internals.mounts.detach(OPERATOR, sandbox.id, mount.path)
    for record in await service.store.snapshots.list_by_node(service.node.id):
        await service.node.snapshots.delete(OPERATOR, record.id)
    for volume in await service.node.volumes.list(OPERATOR):
        await until(lambda id_=volume.id: _free(service, id_))  # type: ignore[misc]
        await service.node.volumes.delete(OPERATOR, volume.id)
    await until(lambda: not loops_below(service.settings.volumes))


async def _free(service: RunningService, volume: str) -> bool:
    return not (await service.node.volumes.get(OPERATOR, volume)).attached


async def made(service: RunningService, name: str = "data") -> str:
    return (await service.node.volumes.create(OPERATOR, name=name, size_bytes=SIZE)).id


async def fails(node: Node, sandbox: Sandbox, command: str, user: User = User.USER) -> str:
    """What a command line says that must not succeed."""
    done = await node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("/bin/sh", "-c", command), user=user, timeout_s=60))
    output = "".join(capture.text() for capture in (done.stdout, done.stderr))
    assert done.outcome.exit_code != 0, output
    return output


async def all_let_go(folder: Path) -> None:
    """Return once no volume is mounted; it may be mounted again then."""

    async def nothing() -> bool:
        return not loops_below(folder / "volumes")

    await until(nothing)


async def _unused(service: RunningService) -> bool:
    return not (await service.node.volumes.get(OPERATOR, "data")).attached


@pytest.mark.slow
@MOSTLY_ON_GVISOR
async def test_volume_takes_no_more_than_its_size(service: RunningService, state_dir: Path, base: CreateSandboxParams) -> None:
    await made(service)
    sandbox = await make(service, replace(base, volumes=(DATA,)))
    for user in (User.USER, User.ROOT):
        said = await fails(service.node, sandbox, f"dd if=/dev/zero of=/data/{user.value} bs=1M count=24", user)
        assert "No space left on device" in said
        written = int(await shell(service.node, sandbox, f"stat -c %s /data/{user.value}; rm -f /data/{user.value}"))
        assert SIZE <= written < 1.1 * SIZE
    assert await shell(service.node, sandbox, "echo 1 > /data/small; cat /data/small; echo 2 > /workspace/other; cat /workspace/other") == "1\n2\n"
    image = next((state_dir / "volumes").glob("*.img"))

    async def given_back() -> bool:
        return image.stat().st_blocks * 512 < SIZE

    await shell(service.node, sandbox, "sync")
    await until(given_back)


@pytest.mark.slow
@MOSTLY_ON_GVISOR
async def test_read_only_volume_is_read_only_for_root_too(service: RunningService, base: CreateSandboxParams) -> None:
    await made(service)
    writer, reader = [await make(service, replace(base, volumes=(mount,))) for mount in (DATA, READ_ONLY)]
    await shell(service.node, writer, "echo one > /data/word")
    assert await shell(service.node, reader, "cat /data/word") == "one\n"
    for command in ("touch /data/x", "rm /data/word", "echo two > /data/word", "chmod 777 /data"):
        assert "Read-only file system" in await fails(service.node, reader, command, User.ROOT)
    tried = "import ctypes; c = ctypes.CDLL(None); [c.mount(b'/data', b'/data', None, f, None) for f in (4096, 4096 | 32, 32)]"
    await service.node.processes.run(OPERATOR, reader.id, ProcessSpec((*INTERPRETER_ARGV, "-c", tried), user=User.ROOT))
    await fails(service.node, reader, "touch /data/x", User.ROOT)
    await shell(service.node, writer, "echo two > /data/word; echo three > /data/new")
    assert await shell(service.node, reader, "cat /data/word /data/new") == "two\nthree\n"


@pytest.mark.slow
@ISOLATIONS
async def test_links_devices_and_setuid_bits_in_a_volume_lead_nowhere(service: RunningService, state_dir: Path, base: CreateSandboxParams) -> None:
    id_ = await made(service)
    sandbox = await make(service, replace(base, volumes=(DATA,)))
    targets = {"host": state_dir, "root": "/", "up": "../../../../../../etc/machine-id", "image": state_dir / "volumes" / f"{id_}.img"}
    links = "; ".join(f"ln -s {target} /data/{name}" for name, target in targets.items())
    await shell(service.node, sandbox, f"{links}; cp /usr/bin/id /data/id; chmod 6755 /data/id; mkfifo /data/pipe")
    planted = await service.node.processes.run(
        OPERATOR, sandbox.id, ProcessSpec(("/bin/sh", "-c", "chown 0:0 /data/id; chmod 6755 /data/id; mknod /data/disk b 7 0; true"), user=User.ROOT)
    )
    assert planted.outcome.exit_code == 0
    for name in ("host/sandlot.db", "image", "disk"):
        await fails(service.node, sandbox, f"head -c 1 /data/{name}", User.ROOT)
    assert "uid=1000" in await shell(service.node, sandbox, "/data/id")
    assert (await shell(service.node, sandbox, "ls /data/root/workspace; readlink -f /data/root")).split() == ["/"]
    assert (await service.node.volumes.get(OPERATOR, id_)).used_bytes > 0
    await service.internals.manager.kill(OPERATOR, sandbox.id)
    await until(lambda: _unused(service))
    await service.node.volumes.delete(OPERATOR, id_)
    assert state_dir.joinpath("sandlot.db").is_file()


@pytest.mark.slow
@ISOLATIONS
async def test_sandbox_without_the_volume_sees_nothing_of_it(service: RunningService, base: CreateSandboxParams) -> None:
    await made(service)
    with_it, without = await make(service, replace(base, volumes=(DATA,))), await make(service, base)
    await shell(service.node, with_it, "echo hidden-word > /data/word")
    for sandbox in (without, await make(service, base)):
        assert "ext4" not in await shell(service.node, sandbox, "cat /proc/mounts")
        assert "hidden-word" not in await shell(service.node, sandbox, "cat /.sandlot/volumes/*/* 2>/dev/null; true")
        if base is BASE:
            for path in ("0/x", "x", "7/x"):
                assert "Read-only file system" in await fails(service.node, sandbox, f"touch /.sandlot/volumes/{path}", User.ROOT)
        assert await fails(service.node, sandbox, "ls /data")


async def test_two_sandboxes_of_different_kinds_write_at_once(service: RunningService, state_dir: Path) -> None:
    id_ = await made(service)
    one, other = [await make(service, replace(each, volumes=(DATA,))) for each in (BASE, IN_CONTAINER)]
    loop = "i=0; while [ $i -lt 30 ]; do echo $i > /data/{0}-$i.new; mv /data/{0}-$i.new /data/{0}-$i; i=$((i+1)); done"
    await asyncio.gather(*(shell(service.node, sandbox, loop.format(name)) for sandbox, name in ((one, "one"), (other, "other"))))
    for sandbox in (one, other):
        assert (
            await shell(service.node, sandbox, "ls /data | wc -l; cat /data/one-* /data/other-* | sort -n | uniq -c | grep -c ' 2 '")
        ).split() == ["60", "30"]
    assert len(loops_below(state_dir / "volumes")) == 1
    seen = await service.node.volumes.get(OPERATOR, "data")
    assert (set(seen.attached), seen.used_bytes > 0) == ({one.id, other.id}, True)
    with pytest.raises(ConflictError, match=one.id):
        await service.node.volumes.delete(OPERATOR, id_)


@pytest.mark.slow
async def test_hibernated_sandbox_has_its_volumes_after_its_wake(service: RunningService, state_dir: Path) -> None:
    id_ = await made(service)
    sandbox = await make(service, WITH)
    await shell(service.node, sandbox, "echo before > /data/word")
    await cell(service.node, sandbox, "file = open('/data/log', 'a')\nfile.write('one\\n')\nfile.flush()")
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    await all_let_go(state_dir)
    assert (await service.node.volumes.get(OPERATOR, id_)).attached == (sandbox.id,)
    with pytest.raises(ConflictError):
        await service.node.volumes.delete(OPERATOR, id_)
    other = await make(service, WITH)
    assert await shell(service.node, other, "cat /data/word; echo after > /data/word; echo new > /data/new") == "before\n"
    await service.internals.manager.resume(OPERATOR, sandbox.id)
    assert await shell(service.node, sandbox, "cat /data/word /data/new") == "after\nnew\n"
    await cell(service.node, sandbox, "file.write('two\\n')\nfile.close()")
    assert await shell(service.node, other, "cat /data/log") == "one\ntwo\n"
    await service.internals.manager.kill(OPERATOR, other.id)
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    await all_let_go(state_dir)
    assert await shell(service.node, sandbox, "cat /data/new") == "new\n"


@pytest.mark.slow
async def test_snapshot_contains_no_volume_and_a_create_from_it_gets_the_requested_ones(service: RunningService) -> None:
    await made(service)
    await made(service, "other")
    snapshots, sandbox = service.node.snapshots, await make(service, WITH)
    await shell(service.node, sandbox, "echo 1 > /data/word; echo kept > /workspace/kept")
    for kind in (SnapshotKind.MEMORY, SnapshotKind.FILES):
        await snapshots.create(OPERATOR, sandbox.id, name=str(kind), kind=kind)
        none = await make(service, CreateSandboxParams(snapshot=str(kind)))
        assert (none.spec.volumes, none.spec.restored) == ((), str(kind))
        assert (
            await shell(service.node, none, "cat /workspace/kept; ls -A /data 2>/dev/null; cat /.sandlot/volumes/*/* 2>/dev/null; true") == "kept\n"
        )
        mounts = (VolumeMount("other", "/data"), VolumeMount("data", "/elsewhere"))
        some = await make(service, CreateSandboxParams(snapshot=str(kind), volumes=mounts))
        assert await shell(service.node, some, "cat /workspace/kept; ls -A /data; cat /elsewhere/word") == "kept\n1\n"
        for each in (none, some):
            await service.internals.manager.kill(OPERATOR, each.id)
    await service.internals.manager.kill(OPERATOR, sandbox.id)
    await until(lambda: _unused(service))
    await service.node.volumes.delete(OPERATOR, "data")
    assert await shell(service.node, await make(service, CreateSandboxParams(snapshot="memory")), "cat /workspace/kept") == "kept\n"


@pytest.mark.slow
def test_volumes_are_mounted_once_over_kills_and_a_restart_of_the_service_and_nothing_is_left() -> None:
    with local_service({"SANDLOT_POOLS": "none"}) as service:
        folder = service.data_dir / "volumes"
        made = service.client.volumes.create("data", "16M")
        service.client.volumes.create("unused", "16M")
        with service.create("base", volumes={"/data": "data"}) as first:
            assert first.commands.run("echo 1 > /data/word").exit_code == 0
            service.end(signal.SIGKILL)
            service.start()
            again = service.client.volumes.get("data")
            assert (again.id, again.attached) == (made.id, (first.id,))
            assert first.commands.run("cat /data/word").stdout == "1\n"
            with service.create("base", volumes={"/data": Mount("data", read_only=True)}) as second:
                assert second.commands.run("cat /data/word").stdout == "1\n"
                assert len(loops_below(folder)) == 1
                assert len({line.split()[2] for line in _mounts(folder) if made.id in line}) == 1  # one file system
            with pytest.raises(ConflictError):
                service.client.volumes.delete("data")
            service.end(signal.SIGKILL)
            for pid in sandbox_pids(service.data_dir):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            service.start()  # what it had mounted is nobody's now
            settle(lambda: len(loops_below(folder)), 0)
        with service.create("base", volumes={"/data": "data"}) as third:
            assert third.commands.run("cat /data/word").stdout == "1\n"
            service.client.volumes.create("later", "16M")
            third.attach_volume("later", "/later")
            assert third.commands.run("echo 42 > /later/answer").exit_code == 0
            service.end()  # it lives on
            assert len(loops_below(folder)) == 2
            service.start()
            assert [each.path for each in third.info().volumes] == ["/data", "/later"]
            assert third.commands.run("cat /data/word /later/answer").stdout == "1\n42\n"
            with pytest.raises(ConflictError):
                service.client.volumes.delete("later")
            third.detach_volume("later")
            assert [each.path for each in third.info().volumes] == ["/data"]
            third.attach_volume("later", "/read", read_only=True)
            assert third.commands.run("cat /read/answer; touch /read/x").exit_code == 1
            third.detach_volume("/read")
            service.client.volumes.delete("later")
        settle(lambda: len(service.client.volumes.get("data").attached), 0)
        service.client.volumes.delete("data")
        assert [each.name for each in service.client.volumes.list()] == ["unused"]


def _mounts(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines() if str(folder) in line]
