"""Volumes of a sandbox: seen where they are asked for, sized, read-only, shared, and gone from the host with their sandbox.

A driver puts them into their places, or into a hub from which the guest binds them (``Instance.hub``); a suite knows no service, so the guest's
program is run here as a service runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.host.volume_disks import VolumeFiles
from sandlot.link.payload import program_argv
from sandlot.model.errors import ConflictError, UnsupportedError
from sandlot.model.ids import new_volume_id
from sandlot.model.ports import Attachment, Change, Driver, DriverCapability
from sandlot.model.specs import MIB, ProcessSpec, User
from sandlot.protocol import values
from sandlot.testing.bench import Bench, Subject, meet
from sandlot.testing.driver_clean import CleanSuite
from sandlot.testing.driver_limits import able

SIZE = 16 * MIB


class VolumesSuite(CleanSuite):
    """See the module."""

    @pytest.fixture
    def volumes(self, bench: Bench, nothing_is_left: object) -> Iterator[list[Path]]:  # noqa: ARG002 - what is left is looked for afterwards
        """Two volumes, mounted on the host."""
        files = VolumeFiles(bench.data_dir / "volumes")
        ids = [new_volume_id(bench.node) for _ in range(2)]
        for each in ids:
            files.make(each, SIZE)
        yield [files.mount(each) for each in ids]
        for each in ids:
            files.remove(each)

    async def test_a_volume_is_seen_in_its_place_and_outlives_its_sandbox(self, bench: Bench, volumes: list[Path]) -> None:
        driver = await able(bench, DriverCapability.VOLUMES)
        for number in range(2):
            async with _with(bench, driver, Attachment(0, volumes[0], "/mnt/data")) as subject:
                assert (await subject.run("sh", "-c", f"echo {number} >> /mnt/data/word")).code == 0
                done = await subject.run("cat", "/mnt/data/word")
                assert (done.code, done.stdout) == (0, "".join(f"{each}\n" for each in range(number + 1))), done.stderr
        async with bench.sandbox(driver) as without:
            assert (await without.run("ls", "/mnt/data")).code != 0

    async def test_its_size_holds(self, bench: Bench, volumes: list[Path]) -> None:
        driver = await able(bench, DriverCapability.VOLUMES)
        async with _with(bench, driver, Attachment(0, volumes[0], "/data")) as subject:
            full = await subject.run("dd", "if=/dev/zero", "of=/data/large", "bs=1M", "count=64", user=User.ROOT)
            assert full.code != 0
            assert "No space left on device" in full.stderr
            assert (
                await subject.run("sh", "-c", "rm -f /data/large && echo fits > /data/small && cat /data/small", user=User.ROOT)
            ).stdout == "fits\n"

    async def test_what_is_read_only_is_so_for_root_and_shared_with_who_writes(self, bench: Bench, volumes: list[Path]) -> None:
        driver = await able(bench, DriverCapability.VOLUMES)
        async with (
            _with(bench, driver, Attachment(0, volumes[0], "/data"), Attachment(1, volumes[1], "/other")) as writer,
            _with(bench, driver, Attachment(0, volumes[1], "/other"), Attachment(1, volumes[0], "/data", read_only=True)) as reader,
        ):
            assert (await writer.run("sh", "-c", "echo 1 > /data/word")).code == 0
            assert (await reader.run("cat", "/data/word")).stdout == "1\n"
            for command in ("touch /data/x", "rm -f /data/word", "chmod 777 /data"):
                assert (await reader.run("sh", "-c", command, user=User.ROOT)).code != 0, command
            assert (await reader.run("sh", "-c", "echo 2 > /other/word")).code == 0
            assert (await writer.run("cat", "/other/word")).stdout == "2\n"

    async def test_one_that_runs_gets_a_volume(self, bench: Bench, volumes: list[Path]) -> None:
        driver = await able(bench, DriverCapability.VOLUMES)
        can = await asyncio.to_thread(driver.probe)
        async with bench.sandbox(driver) as subject:
            volume = Attachment(0, volumes[0], "/data")
            if not can.can(DriverCapability.CONFIGURE_VOLUMES):
                with pytest.raises(UnsupportedError) as refused:
                    await subject.instance.configure(Change(volumes=(volume,)))
                assert can.why_not(DriverCapability.CONFIGURE_VOLUMES) in refused.value.message
                return
            await subject.instance.configure(Change(volumes=(volume,)))
            await _put(subject, volume)
            assert (await subject.run("sh", "-c", "echo 1 > /data/word && cat /data/word")).stdout == "1\n"
            await subject.instance.configure(Change(volumes=(volume,), without=(3,)))  # so it is
            with pytest.raises(ConflictError):
                await subject.instance.configure(Change(without=(0,)))
            assert (await subject.run("cat", "/data/word")).stdout == "1\n"


@asynccontextmanager
async def _with(bench: Bench, driver: Driver, *volumes: Attachment) -> AsyncIterator[Subject]:
    """A live sandbox that has volumes, in their places."""
    prepared = await driver.prepare(bench.shape())
    try:
        await prepared.attach(volumes)
        instance = await prepared.boot(bench.spec())
        async with meet(instance) as subject:
            await _put(subject, *volumes)
            yield subject
    finally:
        await prepared.destroy()


async def _put(subject: Subject, *volumes: Attachment) -> None:
    """Let the guest put volumes into their places, where the driver has not."""
    hub = subject.instance.hub
    if hub is None:
        return
    request = values.encode_message({"gone": [], "there": [[f"{hub}/{each.slot}", each.path, each.read_only] for each in volumes]})
    call = await subject.link.processes.start(ProcessSpec(argv=program_argv("volumes"), user=User.ROOT, cwd="/", stdin=True))
    async with call:
        await call.write(request)
        call.close_stdin()
        said = b"".join([item.data async for item in call if hasattr(item, "data")])
        await call.result()
    assert values.decode(said[values.HEAD_BYTES :]) == {"result": {"used": []}}, said
