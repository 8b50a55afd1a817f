"""Tests of the volumes of a sandbox: mount paths, size limits, read-only and shared volumes, and removal of the mounts with the sandbox.

A driver either mounts volumes at their paths, or mounts all volumes below one folder of the sandbox (``Instance.hub``). In the second case, the
guest's helper program ``volumes`` bind-mounts each volume at its path. A service starts this helper; here, the tests start it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from sandlot.testing.drivers.cleanup import CleanupSuite
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox

SIZE = 16 * MIB


class VolumesSuite(CleanupSuite):
    """Tests of volumes. Needs a fixture ``harness``."""

    @pytest.fixture
    async def volumes(self, harness: DriverHarness, check_leftovers: object) -> AsyncIterator[list[Path]]:  # noqa: ARG002 - the check runs after the volumes were removed
        """Create two volumes, mount the volumes on the host and yield their mount points. Remove the volumes after the test.

        If the driver does not support volumes, the test is skipped before a volume is created.
        """
        await harness.driver_with(DriverCapability.VOLUMES)
        files = VolumeFiles(harness.data_dir / "volumes")
        ids = [new_volume_id(harness.node) for _ in range(2)]
        for each in ids:
            files.make(each, SIZE)
        yield [files.mount(each) for each in ids]
        for each in ids:
            files.remove(each)

    async def test_volume_is_mounted_at_its_path_and_outlives_its_sandbox(self, harness: DriverHarness, volumes: list[Path]) -> None:
        driver = harness.new_driver()
        for number in range(2):
            async with _sandbox_with(harness, driver, Attachment(0, "/mnt/data", tree=volumes[0])) as sandbox:
                assert (await sandbox.run("sh", "-c", f"echo {number} >> /mnt/data/word")).exit_code == 0
                done = await sandbox.run("cat", "/mnt/data/word")
                assert (done.exit_code, done.stdout) == (0, "".join(f"{each}\n" for each in range(number + 1))), done.stderr
        async with harness.sandbox(driver) as without:
            assert (await without.run("ls", "/mnt/data")).exit_code != 0

    async def test_volume_accepts_no_more_than_its_size(self, harness: DriverHarness, volumes: list[Path]) -> None:
        driver = harness.new_driver()
        async with _sandbox_with(harness, driver, Attachment(0, "/data", tree=volumes[0])) as sandbox:
            full = await sandbox.run("dd", "if=/dev/zero", "of=/data/large", "bs=1M", "count=64", user=User.ROOT)
            assert full.exit_code != 0
            assert "No space left on device" in full.stderr
            assert (
                await sandbox.run("sh", "-c", "rm -f /data/large && echo fits > /data/small && cat /data/small", user=User.ROOT)
            ).stdout == "fits\n"

    async def test_read_only_volume_is_read_only_for_root_and_shows_the_writes_of_others(self, harness: DriverHarness, volumes: list[Path]) -> None:
        driver = harness.new_driver()
        async with (
            _sandbox_with(harness, driver, Attachment(0, "/data", tree=volumes[0]), Attachment(1, "/other", tree=volumes[1])) as writer,
            _sandbox_with(
                harness, driver, Attachment(0, "/other", tree=volumes[1]), Attachment(1, "/data", read_only=True, tree=volumes[0])
            ) as reader,
        ):
            assert (await writer.run("sh", "-c", "echo 1 > /data/word")).exit_code == 0
            assert (await reader.run("cat", "/data/word")).stdout == "1\n"
            for command in ("touch /data/x", "rm -f /data/word", "chmod 777 /data"):
                assert (await reader.run("sh", "-c", command, user=User.ROOT)).exit_code != 0, command
            assert (await reader.run("sh", "-c", "echo 2 > /other/word")).exit_code == 0
            assert (await writer.run("cat", "/other/word")).stdout == "2\n"

    async def test_volume_is_attached_to_a_running_sandbox(self, harness: DriverHarness, volumes: list[Path]) -> None:
        driver = harness.new_driver()
        capabilities = await asyncio.to_thread(driver.probe)
        async with harness.sandbox(driver) as sandbox:
            volume = Attachment(0, "/data", tree=volumes[0])
            if not capabilities.can(DriverCapability.CONFIGURE_VOLUMES):
                with pytest.raises(UnsupportedError) as refused:
                    await sandbox.instance.configure(Change(volumes=(volume,)))
                assert capabilities.why_not(DriverCapability.CONFIGURE_VOLUMES) in refused.value.message
                return
            await sandbox.instance.configure(Change(volumes=(volume,)))
            await _bind(sandbox, volume)
            assert (await sandbox.run("sh", "-c", "echo 1 > /data/word && cat /data/word")).stdout == "1\n"
            await sandbox.instance.configure(Change(volumes=(volume,), without=(3,)))  # attached already
            with pytest.raises(ConflictError):
                await sandbox.instance.configure(Change(without=(0,)))
            assert (await sandbox.run("cat", "/data/word")).stdout == "1\n"


@asynccontextmanager
async def _sandbox_with(harness: DriverHarness, driver: Driver, *volumes: Attachment) -> AsyncIterator[ConnectedSandbox]:
    """Boot a sandbox with volumes mounted at their paths, and destroy the sandbox at the end of the block."""
    prepared = await driver.prepare(harness.shape())
    try:
        await prepared.attach(volumes)
        instance = await prepared.boot(harness.spec())
        async with connect_sandbox(instance) as sandbox:
            await _bind(sandbox, *volumes)
            yield sandbox
    finally:
        await prepared.destroy()


async def _bind(sandbox: ConnectedSandbox, *volumes: Attachment) -> None:
    """If the driver has mounted all volumes below one folder (``Instance.hub``), let the guest bind-mount each volume at its path."""
    hub = sandbox.instance.hub
    if hub is None:
        return
    request = values.encode_message({"unbind": [], "bind": [[f"{hub}/{each.slot}", each.path, each.read_only] for each in volumes]})
    call = await sandbox.link.processes.start(ProcessSpec(argv=program_argv("volumes"), user=User.ROOT, cwd="/", stdin=True))
    async with call:
        await call.write(request)
        call.close_stdin()
        response = b"".join([item.data async for item in call if hasattr(item, "data")])
        await call.result()
    assert values.decode(response[values.HEAD_BYTES :]) == {"result": {"used": []}}, response
