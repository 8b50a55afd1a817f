"""A live sandbox outlives its service: the link is opened again with everything under way, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore, cache_from
from sandlot.link.client import Link, ProcessCall
from sandlot.link.types import Entry, Lost, Output
from sandlot.model.errors import ConflictError, ForbiddenError, NotFoundError, UnavailableError
from sandlot.model.ids import new_node_id, new_process_id, new_sandbox_id
from sandlot.model.ports import Instance
from sandlot.model.specs import Limits, ProcessSpec, SandboxSpec, Shape, shell_argv

ONCE = "echo begun >> /tmp/begun; sleep 1; echo done"
TEMPLATE = "base"
LIMITS = Limits(memory_bytes=512 << 20, disk_bytes=64 << 20, pids=64)


@dataclass(slots=True)
class Sandbox:
    """One live sandbox, and the link of the service that serves it now."""

    instance: Instance
    link: Link
    env: dict[str, str]

    async def reopen(self, *, half_read: int = 0) -> None:
        """The service dies in the middle of whatever it was at, and another one comes.

        Args:
            half_read: Bytes that the dead one had read and did nothing with.
        """
        await self.link.aclose()  # which says nothing to the guest: to it this is the same as SIGKILL
        stream = await self.instance.connect()
        if half_read:
            await stream.receive(half_read)
        self.link = await Link.greet(stream)

    async def wake(self, *, hostname: str = "box", identity: str = "sb-test") -> None:
        await self.link.wake(identity=identity, hostname=hostname, env=self.env, pids=LIMITS.pids, deadline_s=600)

    async def sh(self, command: str) -> str:
        """Run a shell command line; its stdout."""
        return await collected(await self.link.start(ProcessSpec(shell_argv(command))))


async def collected(call: ProcessCall) -> str:
    """The standard output of a process that succeeds."""
    text = bytearray()
    async for item in call:
        assert isinstance(item, Output), item
        text += item.data
    result = await call.result()
    assert result.exit_code == 0, (result, text)
    return text.decode()


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    store = ImageStore(cache_from(os.environ))
    node = new_node_id()
    driver = open_driver("gvisor", DriverSettings(node=node, data_dir=tmp_path))
    image = store.ensure(TEMPLATE)
    blank = await driver.prepare(Shape(root=store.root(TEMPLATE), limits=LIMITS))
    try:
        instance = await blank.boot(SandboxSpec(id=new_sandbox_id(node), template=TEMPLATE, limits=LIMITS))
    except BaseException:
        await blank.destroy()
        raise
    try:
        made = Sandbox(instance, await Link.greet(await instance.connect()), dict(image.env))
        await made.wake()
        yield made
        await made.link.aclose()
    finally:
        await instance.destroy()


@pytest.mark.parametrize("half_read", [0, 1, 4099])
async def test_the_link_is_opened_again_with_a_frame_half_written_a_flood_and_calls_in_flight(sandbox: Sandbox, half_read: int) -> None:
    flood, quiet, cell = new_process_id(), new_process_id(), new_process_id()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 65536

    await sandbox.link.write_file("/tmp/file", b"before")
    aiter(await sandbox.link.start(ProcessSpec(("yes",), timeout_s=None), id=flood))
    await sandbox.link.start(ProcessSpec(shell_argv(ONCE)), id=quiet)
    await sandbox.link.execute("import time; print('one'); time.sleep(1); x = globals().get('x', 0) + 1; print('two', x)", id=cell)
    in_flight = [
        asyncio.create_task(sandbox.link.write_file("/tmp/file", endless())),
        asyncio.create_task(sandbox.link.stat("/tmp")),
        asyncio.create_task(sandbox.link.remove("/usr", recursive=True)),
    ]
    await asyncio.sleep(0.3)

    await sandbox.reopen(half_read=half_read)
    written, looked_at, removed = await asyncio.gather(*in_flight, return_exceptions=True)
    assert isinstance(written, UnavailableError)
    assert isinstance(looked_at, Entry | UnavailableError)
    assert isinstance(removed, ForbiddenError | UnavailableError)

    # The same calls, said again by somebody who does not know how far they got.
    again = await sandbox.link.start(ProcessSpec(shell_argv(ONCE)), id=quiet)
    assert await collected(again) == "done\n"
    assert await sandbox.sh("cat /tmp/begun") == "begun\n", "it was not done twice"
    repeated = await sandbox.link.execute("this is not even looked at", id=cell)
    assert b"".join([item.data async for item in repeated if isinstance(item, Output)]) == b"one\ntwo 1\n"
    assert (await repeated.result()).status == "ok"

    # The flood goes on where its reader was, or says what is gone.
    going = await sandbox.link.attach(flood, stdout_from=100, stderr_from=0)
    at = seen = 0
    async for item in going:
        assert isinstance(item, Output | Lost)
        at = at or 100
        assert item.offset == at
        if isinstance(item, Output):
            assert item.data == (b"y\n" * (len(item.data) // 2 + 1))[at % 2 : at % 2 + len(item.data)]
            seen += len(item.data)
        at += len(item.data) if isinstance(item, Output) else item.bytes
        if seen > 4_000_000:
            break
    await going.aclose()
    assert await sandbox.link.signal(flood, 9)

    assert b"".join([chunk async for chunk in await sandbox.link.read_file("/tmp/file")]) == b"before", "half an upload leaves the old file"
    assert {info.process for info in await sandbox.link.processes()} >= {quiet, flood}


async def test_many_services_one_after_another(sandbox: Sandbox) -> None:
    await (await sandbox.link.execute("x = 0")).result()
    for number in range(10):
        await sandbox.link.start(ProcessSpec(("yes",), timeout_s=1))
        await sandbox.reopen(half_read=number * 1000)
        assert not sandbox.link.asleep
        assert (await (await sandbox.link.execute("x += 1")).result()).status == "ok"
    cell = await sandbox.link.execute("print(x)")
    assert b"".join([item.data async for item in cell if isinstance(item, Output)]) == b"10\n"


async def test_at_rest_only_waking_is_served_and_then_all_is_still_there(sandbox: Sandbox) -> None:
    flood = new_process_id()
    running = await sandbox.link.start(ProcessSpec(("yes",), timeout_s=None), id=flood)
    await (await sandbox.link.execute("x = 42")).result()

    await sandbox.link.quiesce()
    with pytest.raises(ConflictError, match="came to rest"):
        await running.result()
    with pytest.raises(UnavailableError):
        await sandbox.sh("true")
    await sandbox.reopen()
    assert sandbox.link.asleep, "a new service learns that it is at rest"

    await sandbox.wake(hostname="renamed", identity="sb-renamed")
    with pytest.raises(ConflictError):
        await sandbox.wake()
    assert await sandbox.sh("hostname") == "renamed\n"
    assert (await sandbox.link.info()).identity == "sb-renamed"
    cell = await sandbox.link.execute("print(x)")
    assert b"".join([item.data async for item in cell if isinstance(item, Output)]) == b"42\n"
    assert await sandbox.link.signal(flood, 9), "it lived through it"
    assert (await (await sandbox.link.attach(flood)).result()).signal == 9


async def test_long_folders_are_read_in_pages(sandbox: Sandbox) -> None:
    await sandbox.sh("mkdir /tmp/many && cd /tmp/many && touch $(seq -f %05g 2500)")
    names: list[str] = []
    more = True
    while more:
        page = await sandbox.link.list_dir("/tmp/many", offset=len(names))
        names += [entry.name for entry in page.entries]
        more = page.more
    assert names == [f"{number:05}" for number in range(1, 2501)]


async def test_an_unknown_process_is_not_there(sandbox: Sandbox) -> None:
    with pytest.raises(NotFoundError):
        await sandbox.link.attach(new_process_id())
    with pytest.raises(NotFoundError):
        await sandbox.link.signal(new_process_id(), 9)
