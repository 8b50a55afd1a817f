"""Limits of a running sandbox: changed by both clients, measured, and refused."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from sandlot.model.errors import ConflictError, UnsupportedError
from sandlot.model.specs import GIB, MIB, Limits
from tests.support.localservice import EACH_ISOLATION, LocalService

pytestmark = pytest.mark.parametrize("service", ["gvisor"], indirect=True, scope="module")

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


@pytest.fixture(scope="module", params=EACH_ISOLATION)
def isolation(request: pytest.FixtureRequest) -> str:
    """Isolation of the sandbox."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def sandbox(service: LocalService, isolation: str) -> Iterator[Sandbox]:
    with service.create(memory="256M", disk="64M", pids=64, isolation=isolation) as made:
        yield made


def test_raised_limits_apply_to_running_processes(sandbox: Sandbox) -> None:
    assert sandbox.run_code("kept = 41").error is None
    assert sandbox.update(memory="1G", pids=200, cpus=1.5).limits == Limits(cpus=1.5, memory_bytes=GIB, disk_bytes=64 * MIB, pids=200)
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
    sandbox.update(memory="1G", pids=200)
    grown = sandbox.run_code(GROW)
    assert grown.stdout == "280 70\n", grown.error
    before = sandbox.info()
    with pytest.raises(ConflictError) as memory:
        sandbox.update(memory="256M", cpus=0.5)
    assert memory.value.fields["field"] == "memory_bytes"
    assert memory.value.fields["in_use"] >= 280 * MIB
    with pytest.raises(ConflictError, match="processes and threads"):
        sandbox.update(pids=64, cpus=0.5)
    with pytest.raises(UnsupportedError, match="disk"):
        sandbox.update(disk="128M", cpus=0.5)
    assert sandbox.info() == before
    assert sandbox.run_code("print(len(family), len(held) >> 20, family[0].poll())").stdout == "70 280 None\n"


def test_lowered_limits_hold(sandbox: Sandbox) -> None:
    shrunk = sandbox.run_code(SHRINK)
    assert shrunk.stdout == "gone\n", shrunk.error
    assert sandbox.update(memory="256M", pids=64).limits.memory_bytes == 256 * MIB
    forks = sandbox.run_code("import subprocess\nfamily = []\nwhile True: family.append(subprocess.Popen(['sleep', '600']))")
    assert forks.error is not None
    assert forks.error.name == "BlockingIOError"
    assert 0 < int(sandbox.run_code("print(len(family))").stdout) <= 64
    assert sandbox.run_code(SHRINK).error is None


def test_programs_see_the_processors_of_the_limit_in_gvisor_and_those_of_the_host_in_containers(sandbox: Sandbox, isolation: str) -> None:
    count = "import os, subprocess; print(len(os.sched_getaffinity(0)), subprocess.check_output('nproc', text=True), end='')"
    host = os.cpu_count() or 1
    for cpus, processors in ((0.5, 1), (1.5, min(2, host))):
        sandbox.update(cpus=cpus)

        expected = processors if isolation == "gvisor" else host
        assert sandbox.run_code(count).stdout == f"{expected} {expected}\n"
        assert sandbox.commands.run("nproc").stdout == f"{expected}\n"
