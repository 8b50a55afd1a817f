"""Table of failures: each is injected into a service, and the response that its client reads has the fault class.

Failures that need a real kernel (a full disk, the out-of-memory killer, a killed runtime) are in tests/conformance and tests/service too.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandlot.model.errors import ErrorCode, HostError, LimitError
from sandlot.model.faults import Fault
from sandlot.model.ports import DriverCapability, ExitReason, HostReading, Resources
from sandlot.server.composition import RunningService
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from sandlot.testing.memory.store import MemoryDatabase, MemoryStore
from tests.support.service import BOUNDLESS, client, serving, tcp_client
from tests.support.until import until

Json = Mapping[str, Any]

NEW = {"template": "base"}


@dataclass
class World:
    """A service with a driver in memory, its client, and a running sandbox."""

    folder: Path
    driver: MemoryDriver
    service: RunningService
    http: httpx.AsyncClient
    url: str = ""

    @property
    def database(self) -> MemoryDatabase:
        assert isinstance(self.service.store, MemoryStore)
        return self.service.store.database

    @property
    def guest(self) -> Any:  # noqa: ANN401 - a scripted guest
        return self.driver.booted[-1].guest

    async def get(self, path: str) -> Json:
        return json(await self.http.get(path))

    async def post(self, path: str, body: object = None, *, http: httpx.AsyncClient | None = None) -> Json:
        return json(await (http or self.http).post(path, json=body))

    async def create(self) -> None:
        """Create the sandbox of the world."""
        self.url = f"/v1/sandboxes/{(await self.post('/v1/sandboxes', NEW))['id']}"

    async def command(self, command: str, **more: object) -> Json:
        return await self.post(f"{self.url}/processes", {"command": command, **more})

    async def code(self, code: str, **more: object) -> Json:
        return await self.post(f"{self.url}/code", {"code": code, **more})

    async def program(self, code: str, language: str = "bash", **more: object) -> Json:
        return await self.post("/v1/programs", {"language": language, "code": code, "template": "base", **more})

    async def interrupted(self, end: Callable[[], object]) -> tuple[Json, str]:
        """Start a command, end its sandbox meanwhile, and return the response of the command and the id of its execution."""
        running = asyncio.create_task(self.command("sleep 600"))
        await until(lambda: bool(self.guest.processes.running))
        execution = self.guest.processes.running[0].id
        made = end()
        if isinstance(made, Awaitable):
            await made
        return await running, execution

    async def ended(self) -> Json:
        """Return the sandbox once it has ended."""
        return await eventually(lambda: self.get(self.url), lambda found: found["exit"])

    async def event(self, type_: str) -> Json:
        """Return the last event of a type."""
        return await eventually(lambda: self.get("/v1/events"), lambda found: [each for each in found["events"] if each["type"] == type_][-1:])

    async def execution(self, id_: str) -> Json:
        """Return an execution once it has ended."""
        return await eventually(lambda: self.get(f"/v1/executions/{id_}"), lambda found: found["status"] != "running" and found)

    def out_of_memory(self) -> None:
        self.driver.booted[-1].crash(ExitReason.OOM, "status 137")

    def crash(self) -> None:
        self.driver.booted[-1].crash()

    async def kill(self) -> None:
        await self.http.delete(self.url)


async def eventually(read: Callable[[], Awaitable[Json]], select: Callable[[Json], Any]) -> Json:
    """Read again until a part is selected, and return the part."""
    async with asyncio.timeout(30):
        while not (part := select(await read())):  # noqa: ASYNC110 - the change is observed over HTTP
            await asyncio.sleep(0.01)
    found: Json = part[0] if isinstance(part, list) else part
    return found


def json(response: httpx.Response) -> Json:
    found: Json = response.json()
    return found


@asynccontextmanager
async def other_world(
    world: World,
    driver: MemoryDriver | None = None,
    *,
    settings: Settings | None = None,
    read_host: Callable[[], HostReading] = lambda: BOUNDLESS,
    keep: bool = False,
) -> AsyncIterator[World]:
    """Run another service, without a sandbox."""
    folder, used = world.folder / "other", driver or MemoryDriver()
    async with serving(folder, used, settings, read_host=read_host, keep=keep) as service, client(service) as http:
        yield World(folder, used, service, http)


# Programs ---------------------------------------------------------------------------------------------------------------


async def exit_code(world: World) -> Json:
    return await world.command("exit 3")


async def signal(world: World) -> Json:
    answer, _ = await world.interrupted(lambda: world.guest.processes.running[0].signal(11))
    return answer


async def command_timeout(world: World) -> Json:
    return await world.command("sleep 600", timeout=0.05)


async def command_out_of_memory(world: World) -> Json:
    answer, _ = await world.interrupted(world.guest.out_of_memory)
    return answer


async def command_process_limit(world: World) -> Json:
    answer, _ = await world.interrupted(lambda: world.guest.processes.running[0].kill("pids"))
    return answer


async def background_command(world: World) -> Json:
    await world.post(f"{world.url}/processes", {"command": "exit 3", "background": True})
    processes = f"{world.url}/processes"
    return await eventually(lambda: world.get(processes), lambda found: [each for each in found["processes"] if not each["running"]])


async def exception(world: World) -> Json:
    return await world.code("1 / 0")


async def cell_timeout(world: World) -> Json:
    return await world.code("import time; time.sleep(600)", timeout=0.05)


async def cell_out_of_memory(world: World) -> Json:
    running = asyncio.create_task(world.code("import time; time.sleep(600)"))
    await until(lambda: any(context.cell is not None for context in world.guest.kernels.contexts.values()))
    world.guest.out_of_memory()
    return await running


async def kernel_dies(world: World) -> Json:
    running = asyncio.create_task(world.code("import time; time.sleep(600)"))
    await until(lambda: any(context.cell is not None for context in world.guest.kernels.contexts.values()))
    world.guest.kernels.contexts["default"].die("died")
    return await running


async def context_deleted(world: World) -> Json:
    context = (await world.post(f"{world.url}/contexts", {"language": "python"}))["id"]
    calls = [asyncio.create_task(world.code("import time; time.sleep(600)", context=context)) for _ in range(2)]
    await until(lambda: len(world.guest.requests("kernel.execute")) == len(calls))
    await world.http.delete(f"{world.url}/contexts/{context}")
    return next(found for found in await asyncio.gather(*calls) if found["status"] == "aborted")


async def program_timeout(world: World) -> Json:
    return await world.program("sleep 600", timeout=0.05)


async def wrong_answer(world: World) -> Json:
    return await world.program("echo 1", expected_output="2")


async def output_limit(world: World) -> Json:
    return await world.program("echo 0123456789", output_bytes=3)


async def interrupted_program(world: World, end: Callable[[], None]) -> Json:
    before = len(world.driver.booted)
    running = asyncio.create_task(world.program("sleep 600"))
    await until(lambda: len(world.driver.booted) > before and bool(world.guest.processes.running))
    end()
    return await running


async def program_out_of_memory(world: World) -> Json:
    return await interrupted_program(world, world.out_of_memory)


async def program_whose_sandbox_crashes(world: World) -> Json:
    return await interrupted_program(world, world.crash)


# Ended sandboxes --------------------------------------------------------------------------------------------------------


async def call_when_out_of_memory(world: World) -> Json:
    return (await world.interrupted(world.out_of_memory))[0]


async def sandbox_out_of_memory(world: World) -> Json:
    world.out_of_memory()
    return await world.ended()


async def event_out_of_memory(world: World) -> Json:
    world.out_of_memory()
    return await world.event("sandbox.ended")


async def execution_out_of_memory(world: World) -> Json:
    return await world.execution((await world.interrupted(world.out_of_memory))[1])


async def sandbox_over_its_disk(world: World) -> Json:
    world.driver.booted[-1].crash(ExitReason.DISK, "the disk is full")
    return await world.ended()


async def call_when_crashed(world: World) -> Json:
    return (await world.interrupted(world.crash))[0]


async def sandbox_crashed(world: World) -> Json:
    world.crash()
    return await world.ended()


async def execution_in_crashed_sandbox(world: World) -> Json:
    return await world.execution((await world.interrupted(world.crash))[1])


async def protocol_violation(world: World) -> Json:
    world.guest.send_garbage()
    return await world.ended()


async def call_when_killed(world: World) -> Json:
    return (await world.interrupted(world.kill))[0]


async def sandbox_killed(world: World) -> Json:
    await world.kill()
    return await world.ended()


async def execution_in_killed_sandbox(world: World) -> Json:
    return await world.execution((await world.interrupted(world.kill))[1])


async def sandbox_timed_out(world: World) -> Json:
    await world.http.patch(world.url, json={"timeout": 1})
    return await world.ended()


async def call_after_the_end(world: World) -> Json:
    await world.kill()
    return await world.command("true")


async def lost_node_state(world: World) -> Json:
    async with other_world(world, keep=True) as first:
        await first.create()
    first.crash()
    async with other_world(world, first.driver) as second:
        return await replace(second, url=first.url).ended()


# Limits and capacity ----------------------------------------------------------------------------------------------------


async def full_sandbox_disk(world: World) -> Json:
    world.guest.files.capacity_bytes = 0
    return json(await world.http.put(f"{world.url}/files/content", params={"path": "/workspace/a"}, content=b"x"))


async def full_node_disk_at_a_snapshot(world: World) -> Json:
    world.driver.fail_next("snapshot", OSError(errno.ENOSPC, "No space left on device"))
    return await world.post(f"{world.url}/snapshots", {})


async def full_node_disk_at_a_start(world: World) -> Json:
    world.driver.fail_next("prepare", *[OSError(errno.ENOSPC, "No space left on device")] * 3)
    return await world.post("/v1/sandboxes", NEW)


async def full_node_disk_at_an_upload(world: World) -> Json:
    full = LimitError("The disk for stored files is full.", code=ErrorCode.NODE_DISK_FULL)
    world.database.faults.fail_next("blobs.write", full)
    return json(await world.http.post("/v1/files", params={"filename": "a"}, content=b"x"))


async def quota(world: World) -> Json:
    key = await world.post("/v1/keys", {"name": "bound", "quota": {"sandboxes": 0}})
    async with tcp_client(world.service, key["key"]) as http:
        return await world.post("/v1/sandboxes", NEW, http=http)


async def no_capacity(world: World) -> Json:
    async with other_world(world, settings=Settings(max_sandboxes=1)) as small:
        await small.create()
        return await small.post("/v1/sandboxes", NEW)


async def never_any_capacity(world: World) -> Json:
    total = Resources(memory_bytes=8 << 30, disk_bytes=1 << 50, pids=1 << 20)
    async with other_world(world, read_host=lambda: replace(BOUNDLESS, total=total, free=total)) as small:
        return await small.post("/v1/sandboxes", {**NEW, "limits": {"memory_bytes": 64 << 30}})


# Requests ---------------------------------------------------------------------------------------------------------------


async def bad_request(world: World) -> Json:
    return await world.post("/v1/sandboxes", {**NEW, "timeout": -1})


async def unknown_template(world: World) -> Json:
    return await world.post("/v1/sandboxes", {"template": "nothing"})


async def missing_program(world: World) -> Json:
    return await world.post(f"{world.url}/processes", {"argv": ["/nothing"]})


async def missing_file(world: World) -> Json:
    return await world.get(f"{world.url}/files/content?path=/nothing")


async def no_key(world: World) -> Json:
    async with tcp_client(world.service) as http:
        return await world.post("/v1/sandboxes", NEW, http=http)


async def too_large(world: World) -> Json:
    return await world.code("#" * (5 << 20))


async def paused(world: World) -> Json:
    await world.http.patch(world.url, json={"auto_resume": False})
    await world.post(f"{world.url}/pause")
    return await world.command("true")


async def unsupported_network(world: World) -> Json:
    driver = MemoryDriver(capabilities=frozenset(DriverCapability) - {DriverCapability.NETWORK})
    async with other_world(world, driver) as without_cards:
        return await without_cards.post("/v1/sandboxes", {**NEW, "network": {"mode": "internet"}})


# The service and its host -----------------------------------------------------------------------------------------------


async def driver_missing(world: World) -> Json:
    driver = MemoryDriver()
    driver.faults.reason = "runsc is not installed"
    async with other_world(world, driver) as unprepared:
        return await unprepared.post("/v1/sandboxes", NEW)


async def boot_fails(world: World) -> Json:
    world.driver.fail_next("boot", HostError("The host failed to start the sandbox.", hint="Repair the host."))
    return await world.post("/v1/sandboxes", NEW)


async def defect(world: World) -> Json:
    world.driver.fail_next("usage", RuntimeError("a defect"))
    return await world.get(f"{world.url}/usage")


async def guest_fails(world: World) -> Json:
    world.guest.fail_next("process.start", "internal")
    return await world.command("true")


async def service_stopping(world: World) -> Json:
    return (await world.interrupted(lambda: world.service.internals.manager.aclose(keep=True)))[0]


async def unusable_snapshot(world: World) -> Json:
    snapshot = await world.post(f"{world.url}/snapshots", {})
    world.driver.version = "memory-2"
    return await world.post("/v1/sandboxes", {"snapshot": snapshot["id"]})


Failure = Callable[[World], Awaitable[Json]]

TABLE: Mapping[str, tuple[Failure, Fault | None]] = {
    "command exits with another code than 0": (exit_code, Fault.CODE),
    "command is ended by a signal": (signal, Fault.CODE),
    "command exceeds its timeout": (command_timeout, Fault.CODE),
    "command is killed at the memory limit": (command_out_of_memory, Fault.LIMIT),
    "command is killed at the process limit": (command_process_limit, Fault.LIMIT),
    "background command exits with another code than 0": (background_command, Fault.CODE),
    "code raises an exception": (exception, Fault.CODE),
    "code exceeds its timeout": (cell_timeout, Fault.CODE),
    "code is killed at the memory limit": (cell_out_of_memory, Fault.LIMIT),
    "kernel ends by itself": (kernel_dies, Fault.CODE),
    "code waits in a context that is deleted": (context_deleted, Fault.REQUEST),
    "program exceeds its timeout": (program_timeout, Fault.CODE),
    "program writes a wrong answer": (wrong_answer, Fault.CODE),
    "program writes too much": (output_limit, Fault.LIMIT),
    "program takes the sandbox's memory": (program_out_of_memory, Fault.LIMIT),
    "program's sandbox crashes": (program_whose_sandbox_crashes, Fault.LOST),
    "sandbox out of memory: interrupted call": (call_when_out_of_memory, Fault.LIMIT),
    "sandbox out of memory: sandbox": (sandbox_out_of_memory, Fault.LIMIT),
    "sandbox out of memory: event": (event_out_of_memory, Fault.LIMIT),
    "sandbox out of memory: execution": (execution_out_of_memory, Fault.LIMIT),
    "sandbox exceeds its disk limit": (sandbox_over_its_disk, Fault.LIMIT),
    "runtime crashes: interrupted call": (call_when_crashed, Fault.LOST),
    "runtime crashes: sandbox": (sandbox_crashed, Fault.LOST),
    "runtime crashes: execution": (execution_in_crashed_sandbox, Fault.LOST),
    "guest violates the protocol": (protocol_violation, Fault.LOST),
    "node state is lost in a restart": (lost_node_state, Fault.LOST),
    "sandbox is killed: interrupted call": (call_when_killed, Fault.REQUEST),
    "sandbox is killed: sandbox": (sandbox_killed, None),
    "sandbox is killed: execution": (execution_in_killed_sandbox, Fault.REQUEST),
    "sandbox reaches its timeout": (sandbox_timed_out, None),
    "call to an ended sandbox": (call_after_the_end, Fault.REQUEST),
    "disk of the sandbox is full": (full_sandbox_disk, Fault.LIMIT),
    "disk of the node is full at a start": (full_node_disk_at_a_start, Fault.CAPACITY),
    "disk of the node is full at a snapshot": (full_node_disk_at_a_snapshot, Fault.CAPACITY),
    "disk of the node is full at an upload": (full_node_disk_at_an_upload, Fault.CAPACITY),
    "quota is used up": (quota, Fault.LIMIT),
    "node has no room now": (no_capacity, Fault.CAPACITY),
    "node never has so much room": (never_any_capacity, Fault.REQUEST),
    "value out of range": (bad_request, Fault.REQUEST),
    "unknown template": (unknown_template, Fault.REQUEST),
    "missing program": (missing_program, Fault.REQUEST),
    "missing file": (missing_file, Fault.REQUEST),
    "request without a key": (no_key, Fault.REQUEST),
    "request is too large": (too_large, Fault.REQUEST),
    "paused sandbox that is not resumed by requests": (paused, Fault.REQUEST),
    "network that the driver cannot enforce": (unsupported_network, Fault.REQUEST),
    "driver is missing on the host": (driver_missing, Fault.PLATFORM),
    "sandbox cannot be started": (boot_fails, Fault.PLATFORM),
    "defect of the service": (defect, Fault.PLATFORM),
    "guest fails": (guest_fails, Fault.PLATFORM),
    "service stops during the call": (service_stopping, Fault.PLATFORM),
    "snapshot cannot be restored any more": (unusable_snapshot, Fault.LOST),
}
"""Failure -> function that causes it and returns what the client reads, fault class."""


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    driver = MemoryDriver()
    async with serving(folder, driver) as service, client(service) as http:
        made = World(folder, driver, service, http)
        await made.create()
        yield made


@pytest.mark.parametrize("failure", TABLE)
async def test_failure_has_its_fault_class(world: World, failure: str) -> None:
    cause, fault = TABLE[failure]
    found = await cause(world)
    assert found["fault"] == fault, found


def test_table_has_every_class() -> None:
    assert {fault for _, fault in TABLE.values()} == {None, *Fault}
