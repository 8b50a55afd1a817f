"""Promise: builds of two keys share nothing, and a hostile step ends its build only."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

import pytest

from sandlot.builds.limits import BuildLimits
from sandlot.model.access import OwnerId, Principal
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import MIB
from sandlot.model.templates import MAX_LINE_CHARS, BuildStatus
from tests.support.building import Bench, building
from tests.support.oci import MadeImage
from tests.support.roots import busybox_image
from tests.support.saving import place
from tests.support.traces import NOTHING, settle, traces
from tests.support.until import until

LIMITS = BuildLimits(
    builds=16,
    builds_per_key=16,
    network=NetworkPolicy(NetworkMode.NONE),
    cached_step_s=0.5,
    output_bytes=32 * MIB,
    layer_bytes=512 * MIB,
    layer_entries=20_000,
)
ALICE, BOB = (Principal(OwnerId(name), name) for name in ("alice", "bob"))
MAX_LOG_BYTES = 2_100 * MAX_LINE_CHARS
"""Lines that a program may write in its first 10 seconds, each of the largest length, and those of the build itself."""


def image() -> MadeImage:
    """Return busybox as an image."""
    packed = subprocess.run(["tar", "-C", busybox_image(), "-c", "./bin"], check=True, capture_output=True).stdout
    return MadeImage([packed], settings={"Env": ["PATH=/bin"]})


@pytest.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Bench]:
    with place() as folder:
        async with building(folder, tmp_path_factory.mktemp("registry"), {"busybox": image()}, LIMITS) as running:
            yield running


@pytest.fixture(autouse=True)
async def nothing_is_left(bench: Bench) -> AsyncIterator[None]:
    """Check that builds leave the layers of ready builds, cached results and snapshots, and nothing else."""
    yield
    await until(bench.is_idle)
    await asyncio.to_thread(settle, lambda: replace(traces(bench.service.settings.data_dir), cgroups=()), NOTHING)
    assert not [file for file in bench.files() if file.startswith("tmp/") or "part-" in file]


async def test_two_keys_that_build_the_same_share_no_step(bench: Bench) -> None:
    text = f"FROM {bench.host}/busybox:1\nCOPY secret /secret\nRUN sleep 1; head -c 16 /dev/urandom | md5sum | tee /drawn; cat /secret\n"
    secret = {"secret": b"same content"}
    builds = await asyncio.gather(*(bench.build(text, each, context=secret) for each in (ALICE, BOB)))
    drawn = [await bench.shell("cat /drawn", each) for each in (ALICE, BOB)]
    assert drawn[0] != drawn[1]
    for mine, build, value in zip((ALICE, BOB), builds, drawn, strict=True):
        assert "CACHED" not in await bench.log(build)
        again = await bench.build(text, mine, context=secret)
        assert "CACHED RUN" in await bench.log(again)
        assert await bench.shell("cat /drawn", mine) == value


HOSTILE = {
    "fork-bomb": ("bomb() { bomb | bomb & }; bomb; sleep 1; ls / || exit 9; while true; do :; done", ""),
    "processes": ("while true; do sleep 1000 & done", "maximum number of processes"),
    "full-disk": ("dd if=/dev/zero of=/zeros bs=1M", "No space left on device"),
    "fallocate": ("fallocate -l 100G /zeros", "No space left on device"),
    "memory": ("tail -c 1000000000 /dev/zero", "no memory left"),
    "endless-lines": ("yes", "bytes of output, the maximum"),
    "endless-line": ("tr '\\000' x < /dev/zero", "bytes of output, the maximum"),
    "no-shell": ("rm -r /bin/sh /bin/busybox; true\nRUN echo never", "has no program '/bin/sh'"),
    "false-shell": ("rm /bin/sh && echo nonsense > /bin/sh && chmod 755 /bin/sh\nRUN echo never", "'/bin/sh' cannot be run"),
    "no-files": ("rm -rf /* 2> /dev/null; true\nRUN echo never", "has no program '/bin/sh'"),
    "kills-everything": ("kill -9 -1; kill -9 1; exit 3", "The sandbox of the build has ended"),
    "sparse-file": ("truncate -s 1000G /sparse", "bytes"),
    "many-files": ("mkdir /many; cd /many; seq 30000 | xargs touch", "20000 files"),
    "reserved-name": ("touch /.wh.bin", "names that begin with `.wh.` are reserved"),
}
"""Name of the template -> what its build runs, and a part of the error."""


async def test_hostile_commands_end_their_builds_only(bench: Bench) -> None:
    begin = f"FROM {bench.host}/busybox:1\nRUN "
    hostile = {name: await bench.start(f"{begin}{command}\n", ALICE, name=name) for name, (command, _) in HOSTILE.items()}
    emptied = await bench.start(f"{begin}rm -rf /* 2> /dev/null; true\n", ALICE, name="emptied")
    good = await bench.start(f"{begin}sleep 1000 & echo begun; sleep 2; echo fine\n", BOB, name="good")
    sandbox = await bench.node.sandboxes.create(BOB, CreateSandboxParams(template="base"))  # while all of them run
    await bench.node.sandboxes.kill(BOB, sandbox.id)
    for name, build in hostile.items():
        ended = await bench.ended(ALICE, build)
        assert (name, ended.status) == (name, BuildStatus.FAILED)
        assert HOSTILE[name][1] in ended.error
        assert len(await bench.log(ended)) < MAX_LOG_BYTES, name
    assert "\nbegun\nfine" in await bench.log(await bench.ended(BOB, good))
    assert await bench.shell("cat", BOB, template="good") == ""
    assert (await bench.ended(ALICE, emptied)).status is BuildStatus.READY
    sandbox = await bench.node.sandboxes.create(ALICE, CreateSandboxParams(template="emptied"))
    assert "etc" in [entry.name for entry in (await bench.node.files.list(ALICE, sandbox.id, "/")).entries]
    await bench.node.sandboxes.kill(ALICE, sandbox.id)
    ready = [build.root for build in await bench.node.template_builds.ready_builds()]
    await bench.runtime.prune()
    assert {file for file in bench.files() if file.startswith("layers/")} == {
        f"layers/{layer.digest.replace(':', '-')}" for root in ready if root is not None for layer in root.layers
    }


async def test_build_that_takes_too_long_is_ended(bench: Bench) -> None:
    bench.runtime._limits = replace(LIMITS, build_s=5.0)  # noqa: SLF001 - in place of half an hour
    try:
        build = await bench.ended(
            ALICE, await bench.start(f"FROM {bench.host}/busybox:1\nRUN trap '' TERM HUP; while true; do sleep 1; done\n", ALICE)
        )
    finally:
        bench.runtime._limits = LIMITS  # noqa: SLF001
    assert (build.status, build.error) == (BuildStatus.FAILED, "The build has taken 5 seconds, the maximum.")
