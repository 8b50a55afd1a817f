"""Promise: a step that prints 10 GiB costs the service neither memory nor disk, whether the limit of output ends the build or not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.builds.limits import BuildLimits
from sandlot.model.access import OPERATOR
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import GIB, MIB
from sandlot.model.templates import MAX_LINE_CHARS, BuildStatus
from tests.support.building import Bench, building
from tests.support.oci import MadeImage
from tests.support.roots import busybox_image
from tests.support.saving import place

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

OUTPUT_BYTES = 10 * GIB
MEMORY_BYTES = 64 * MIB
"""Largest growth of the resident memory of the service."""
SAMPLE_S = 0.05


def image() -> MadeImage:
    """Return busybox as an image."""
    packed = subprocess.run(["tar", "-C", busybox_image(), "-c", "./bin"], check=True, capture_output=True).stdout
    return MadeImage([packed], settings={"Env": ["PATH=/bin"]})


@dataclass(slots=True)
class Peak:
    """Largest size of something while it is watched, beyond its size at the start."""

    bytes: int = 0


@asynccontextmanager
async def watched_memory() -> AsyncIterator[Peak]:
    """Watch the resident memory of this process, in which the service runs."""
    peak, before = Peak(), _resident_bytes()

    async def watch() -> None:
        while True:
            peak.bytes = max(peak.bytes, _resident_bytes() - before)
            await asyncio.sleep(SAMPLE_S)

    watching = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        watching.cancel()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def disk_bytes(folder: Path) -> int:
    """Return the space that the files of a folder take. Files may be removed meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            size += 512 * path.lstat().st_blocks
    return size


async def longest_create_s(bench: Bench, until_done: asyncio.Task[object]) -> float:
    """Create sandboxes until a task is done, and return the longest time that one took."""
    longest_s = 0.0
    while not until_done.done():
        began_s = time.monotonic()
        sandbox = await bench.node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        longest_s = max(longest_s, time.monotonic() - began_s)
        await bench.node.sandboxes.kill(OPERATOR, sandbox.id)
    return longest_s


@pytest.mark.parametrize(
    "limit_bytes, line, status",
    [
        (BuildLimits().output_bytes, "y", BuildStatus.FAILED),
        (BuildLimits().output_bytes, "x" * 1000, BuildStatus.FAILED),
        (OUTPUT_BYTES + MIB, "x" * 1000, BuildStatus.READY),
    ],
    ids=["short-lines", "long-lines", "all-of-it"],
)
async def test_ten_gibibytes_of_output_cost_neither_memory_nor_disk(
    tmp_path_factory: pytest.TempPathFactory, limit_bytes: int, line: str, status: BuildStatus
) -> None:
    images = {"busybox": image()}
    limits = BuildLimits(network=NetworkPolicy(NetworkMode.NONE), output_bytes=limit_bytes)
    with place() as folder:
        async with building(folder, tmp_path_factory.mktemp("registry"), images, limits) as bench:
            begin = f"FROM {bench.host}/busybox:1\nRUN "
            await bench.build(f"{begin}true\n", name="before")  # what the first build makes is not counted
            before_bytes, began_s = disk_bytes(folder), time.monotonic()
            async with watched_memory() as peak:
                build = await bench.start(f"{begin}yes {line} | head -c {OUTPUT_BYTES}\n", name="loud")
                ending = asyncio.create_task(bench.ended(OPERATOR, build))
                create_s = await longest_create_s(bench, ending)
                ended = await ending
            took_s, grown_bytes, log = time.monotonic() - began_s, disk_bytes(folder) - before_bytes, await bench.log(ended)
            print(f"{took_s:.1f} s, memory +{peak.bytes / MIB:.1f} MiB, disk +{grown_bytes / MIB:.1f} MiB, log {len(log) / MIB:.2f} MiB")
            print(f"longest create meanwhile {create_s:.2f} s")
            assert ended.status is status, ended.error
            assert status is BuildStatus.READY or "bytes of output, the maximum" in ended.error
            assert "lines of output were left out" in log
            assert log.count("\n") < limits.log_lines + 100
            assert max(map(len, log.splitlines())) <= MAX_LINE_CHARS
            assert peak.bytes < MEMORY_BYTES
            assert grown_bytes < 2 * len(log) + 32 * MIB  # the log, its index, and the journal of the database
