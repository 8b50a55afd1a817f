"""gVisor sandboxes that are saved again and again keep their files, variables and processes, also with many files and near the memory limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox, SandboxEndedError
from sandlot.sdk import CommandHandle
from tests.support.localservice import LocalService, local_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

ROUNDS = 20
WITHDRAWN_S = 450.0
"""Seconds in which a granted headroom must be withdrawn, or the sandbox ended (``drivers/oci/headroom.py``: the last attempt is made after 411 s)."""
MAKE_FILES = """
import os
kept = {count}
for number in range(kept):
    folder = f'/workspace/many/{{number // 100}}'
    if number % 100 == 0:
        os.makedirs(folder)
    with open(f'{{folder}}/{{number}}', 'w') as file:
        file.write(f'{{number:0200}}')
"""
SUM_FILES = "import os; print(kept, sum(int(open(os.path.join(at, name)).read()) for at, _, names in os.walk('/workspace/many') for name in names))"
HOLDER = """
import hashlib, os, signal, sys
held = bytearray()
for _ in range(int(sys.argv[1])):
    held += os.urandom(1 << 20)
os.mkfifo('/tmp/answers')
print('ready', flush=True)
while True:
    signal.sigwait({signal.SIGUSR1})
    with open('/tmp/answers', 'w') as file:
        file.write(hashlib.sha256(held).hexdigest())
"""
"""A process that keeps random bytes, whose digest it writes to a FIFO upon SIGUSR1."""
TENANT = """
import mmap, os, sys, time
page, kept = os.urandom(4096), []
def take(mib):
    for _ in range(mib // 4):
        kept.append(mmap.mmap(-1, 4 << 20))
        kept[-1].write(page * 1024)
take(int(sys.argv[1]))
print('ready', flush=True)
last = time.monotonic()
while (now := time.monotonic()) - last < 0.12:
    last = now
    time.sleep(0.002)
take(int(sys.argv[2]))
while True:
    time.sleep(1)
    for each in kept:
        each[0]
"""
"""A process that takes more memory as soon as it notices that a snapshot has stopped the sandbox."""


@pytest.fixture
def service() -> Iterator[LocalService]:
    with local_service(isolation="gvisor") as running:
        yield running


def run(sandbox: Sandbox, code: str) -> str:
    """Return what a cell printed; fail if the cell failed."""
    done = sandbox.run_code(code, timeout=600)
    assert done.status == "ok", (done.status, done.error)
    return done.stdout.strip()


def wait_ready(process: CommandHandle) -> None:
    """Wait until a process has printed ``ready``."""
    for piece in process:
        if b"ready" in piece.data:
            return
    raise AssertionError(process.result)


def save(service: LocalService, sandbox: Sandbox, kind: str) -> None:
    """Take a snapshot and delete it, or hibernate and resume the sandbox."""
    if kind == "snapshot":
        snapshot = sandbox.snapshot()
        service.client.snapshots.delete(snapshot.id)
    else:
        sandbox.hibernate()
        sandbox.resume()


def limit_in_force(ref: str) -> int:
    """Return the memory limit in bytes of a sandbox's control group."""
    for name in ("memory.limit_in_bytes", "memory.max"):
        for file in Path("/sys/fs/cgroup").glob(f"**/{ref}/{name}"):
            return int(file.read_text("ascii"))
    raise AssertionError(f"{ref} has no control group")


def is_bounded(service: LocalService, sandbox: Sandbox, ref: str, limit: int) -> bool:
    """Return True if the only sandbox has ended, or uses at most its memory limit in bytes, and no more than this limit is in force and reserved."""
    if service.client.service.capacity().reserved.memory_bytes > limit:
        return False
    try:
        return sandbox.usage().memory_bytes <= limit == limit_in_force(ref)
    except SandboxEndedError:
        return True


def test_100000_files_survive_20_rounds(service: LocalService) -> None:
    count = 100_000
    with service.create(timeout=3600) as sandbox:
        run(sandbox, MAKE_FILES.format(count=count))
        for number in range(ROUNDS):
            save(service, sandbox, "snapshot")
            save(service, sandbox, "hibernation")
            assert run(sandbox, SUM_FILES) == f"{count} {sum(range(count))}", f"round {number}"


def test_memory_filled_to_nine_tenths_survives_20_rounds(service: LocalService) -> None:
    with service.create(timeout=3600) as sandbox:
        assert run(sandbox, "kept = 42") == ""
        limit = sandbox.info().limits.memory_bytes
        sandbox.files.write("/tmp/holder.py", HOLDER)
        size = limit * 9 // 10 - sandbox.usage().memory_bytes
        process = sandbox.commands.run(f"exec python3 /tmp/holder.py {size >> 20}", background=True)
        wait_ready(process)
        assert sandbox.usage().memory_bytes > limit * 88 // 100
        ask = f"kill -USR1 {process.pid} && cat /tmp/answers"
        digest = sandbox.commands.run(ask, timeout=120).stdout
        assert len(digest) == 64
        for number in range(ROUNDS):
            save(service, sandbox, "snapshot")
            save(service, sandbox, "hibernation")
            assert sandbox.commands.run(ask, timeout=120).stdout == digest, f"round {number}"
        process.kill()
        assert run(sandbox, "print(kept)") == "42"


@pytest.mark.parametrize("count, memory", [(50_000, "256M"), (50_000, "512M"), (100_000, "512M"), (100_000, "1G")])
def test_saves_in_quick_succession_leave_enough_memory_for_many_files(service: LocalService, count: int, memory: str) -> None:
    with service.create(memory=memory, timeout=3600) as sandbox:
        run(sandbox, MAKE_FILES.format(count=count))
        for kind in ("snapshot", "snapshot", "hibernation", "snapshot"):
            save(service, sandbox, kind)
        assert run(sandbox, SUM_FILES) == f"{count} {sum(range(count))}"


@pytest.mark.parametrize("memory, before, more", [(512, 470, 440), (128, 90, 300), (96, 55, 280)])
def test_memory_that_a_program_takes_during_a_snapshot_is_not_kept(service: LocalService, memory: int, before: int, more: int) -> None:
    with service.create(memory=f"{memory}M", timeout=3600) as sandbox:
        (ref,) = service.refs()
        sandbox.files.write("/tmp/tenant.py", TENANT)
        process = sandbox.commands.run(f"exec python3 /tmp/tenant.py {before} {more}", background=True)
        wait_ready(process)
        service.client.snapshots.delete(sandbox.snapshot().id)
        deadline = time.monotonic() + WITHDRAWN_S
        while not is_bounded(service, sandbox, ref, memory << 20) and time.monotonic() < deadline:
            time.sleep(1)
        assert is_bounded(service, sandbox, ref, memory << 20)
