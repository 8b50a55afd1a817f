"""Limits of a running sandbox: changed by both clients, measured, and refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from sandlot import AsyncClient, AsyncSandbox, Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, UnsupportedError
from sandlot.model.specs import GIB, MIB, Limits
from tests.support.localservice import EACH_ISOLATION, LocalService, local_service

GROW = """
import resource, subprocess
if not globals().get("held"):
    held = bytearray()
    held.extend(b"x" * (280 << 20))
if not globals().get("family"):
    family = [subprocess.Popen(["sleep", "600"]) for _ in range(70)]
print(len(held) >> 20, len(family))
"""
SHRINK = """
held = None
for each in globals().get("family", ()):
    each.kill()
    each.wait()
family = []
print("gone")
"""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(isolation="gvisor") as running:
        yield running


@pytest.fixture(scope="module", params=EACH_ISOLATION)
def isolation(request: pytest.FixtureRequest) -> str:
    """Isolation of the sandbox."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def sandbox(service: LocalService, isolation: str) -> Iterator[Sandbox]:
    with service.create(memory="256M", disk="64M", pids=64, isolation=isolation) as made:
        yield made


@pytest.fixture
async def async_sandbox(service: LocalService, sandbox: Sandbox) -> AsyncIterator[AsyncSandbox]:
    async with AsyncClient(data_dir=service.data_dir, autostart=False) as client:
        yield await AsyncSandbox.connect(sandbox.id, client=client)


def test_isolation_and_its_abilities_are_reported_everywhere(service: LocalService, sandbox: Sandbox, isolation: str) -> None:
    assert sandbox.isolation == sandbox.info().isolation == isolation
    assert {info.isolation for info in service.client.sandboxes()} == {isolation}
    assert service.client.sandbox(sandbox.id).isolation == isolation
    (driver,) = (each for each in service.client.capabilities()["drivers"] if each["driver"] == isolation)
    told = {name: verdict for name, verdict in driver["abilities"].items() if name.startswith("configure.")}
    able = {"configure.memory": True, "configure.cpu": True, "configure.pids": True, "configure.disk": False}
    able["configure.volumes"] = isolation == "gvisor"  # a container has them from its start, or never
    assert {name: verdict["ok"] for name, verdict in told.items()} == able
    assert told["configure.disk"]["reason"]


def test_raised_limits_apply_to_running_processes(sandbox: Sandbox) -> None:
    assert sandbox.run_code("kept = 41").error is None
    assert sandbox.set_limits(memory="1G", pids=200, cpus=1.5) == Limits(cpus=1.5, memory_bytes=GIB, disk_bytes=64 * MIB, pids=200)
    assert sandbox.limits == sandbox.info().limits
    # The kernel of before, with its variables: more memory than it was born with, and more processes.
    grown = sandbox.run_code(GROW)
    assert grown.stdout == "280 70\n", grown.error
    assert sandbox.run_code("print(kept + 1, resource.getrlimit(resource.RLIMIT_NPROC)[0])").stdout == "42 200\n"
    used = sandbox.usage()
    assert used.limits == sandbox.limits
    assert used.pids is not None
    assert 70 < used.pids <= 200
    assert used.host_tasks >= used.pids
    assert 280 * MIB <= used.memory_bytes <= used.memory_peak_bytes <= GIB
    assert used.cpu_s > 0


def test_limits_below_what_is_in_use_are_refused_and_nothing_changes(sandbox: Sandbox) -> None:
    sandbox.set_limits(memory="1G", pids=200)
    grown = sandbox.run_code(GROW)
    assert grown.stdout == "280 70\n", grown.error
    before = sandbox.info()
    with pytest.raises(ConflictError) as memory:
        sandbox.set_limits(memory="256M", cpus=0.5)
    assert memory.value.fields["field"] == "memory_bytes"
    assert memory.value.fields["in_use"] >= 280 * MIB
    with pytest.raises(ConflictError, match="processes and threads"):
        sandbox.set_limits(pids=64, cpus=0.5)
    with pytest.raises(UnsupportedError, match="disk"):
        sandbox.set_limits(disk="128M", cpus=0.5)
    assert sandbox.info() == before
    assert sandbox.run_code("print(len(family), len(held) >> 20, family[0].poll())").stdout == "70 280 None\n"


def test_lowered_limits_hold(sandbox: Sandbox) -> None:
    shrunk = sandbox.run_code(SHRINK)
    assert shrunk.stdout == "gone\n", shrunk.error
    assert sandbox.set_limits(memory="256M", pids=64).memory_bytes == 256 * MIB
    forks = sandbox.run_code("import subprocess\nfamily = []\nwhile True: family.append(subprocess.Popen(['sleep', '600']))")
    assert forks.error is not None
    assert forks.error.name == "BlockingIOError"
    assert 0 < int(sandbox.run_code("print(len(family))").stdout) <= 64
    assert sandbox.run_code(SHRINK).error is None


async def test_both_clients_report_the_same_limits(async_sandbox: AsyncSandbox, sandbox: Sandbox) -> None:
    pids = (await async_sandbox.info()).limits.pids
    changes = (async_sandbox.set_limits(cpus=0.5 + number / 10) for number in range(5))
    for limits in await asyncio.gather(*changes):
        assert limits.pids == pids
    assert (await async_sandbox.info()).limits == sandbox.info().limits
    used = await async_sandbox.usage()
    assert used.limits == async_sandbox.limits
    assert used.disk_bytes <= 64 * MIB


@pytest.mark.slow
def test_memory_beyond_what_is_left_is_busy(service: LocalService) -> None:
    with service.create(memory="256M", isolation="container") as one:
        free = service.client.request("GET", "/v1/capacity")["free"]["memory_bytes"]
        with service.create(memory=free - 256 * MIB, isolation="container") as other:
            # Past the SDK, which asks again.
            with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.data_dir / "sandlot.sock")), base_url="http://sandlot") as http:
                busy = http.patch(f"/v1/sandboxes/{one.id}", json={"limits": {"memory_bytes": 768 * MIB}})
            assert (busy.status_code, busy.json()["code"], busy.json()["fields"]["resource"]) == (503, ErrorCode.BUSY, "memory_bytes")
            assert int(busy.headers["retry-after"]) > 0
            assert one.info().limits.memory_bytes == 256 * MIB
            other.set_limits(memory="256M")
            assert one.set_limits(memory="768M").memory_bytes == 768 * MIB
