"""Tests of a restart after the service was killed: the next service adopts or destroys the remaining sandboxes, but no sandbox of another node."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import DriverCapability, ExitReason
from sandlot.testing.drivers.crashing_service import MARKER_PATH, MARKER_TEXT, crashing_service
from sandlot.testing.drivers.harness import DriverHarness, connect_sandbox
from sandlot.testing.drivers.leftovers import leftovers, wait_until_empty

_ROUNDS = 4
_MAX_DELAY_S = 1.2
"""Longest time in seconds from the start of the crashing service to its kill."""


class RestartSuite:
    """Tests that a driver adopts live sandboxes and destroys all others after a restart. Needs a fixture ``harness``."""

    async def test_live_sandbox_is_adopted_after_its_service_was_killed(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.ADOPT)
        with crashing_service(harness, "live") as (service, ref):
            service.kill()
            service.wait()
        assert await driver.sweep(keep=[ref]) == 0
        instance = await driver.adopt(ref)
        assert instance.ref == ref
        async with connect_sandbox(instance) as sandbox:
            assert (await sandbox.run("cat", MARKER_PATH)).stdout == MARKER_TEXT
            assert (await instance.usage()).memory_bytes > 0
            with pytest.raises(ConflictError):
                await driver.adopt(ref)
            await sandbox.link.shutdown()
            assert (await instance.wait()).reason is ExitReason.EXITED
        await instance.destroy()

    async def test_destroyed_or_foreign_sandbox_is_not_adopted(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        instance = await harness.boot(driver)
        other = replace(harness, node=new_node_id())
        with pytest.raises(NotFoundError):
            await other.new_driver().adopt(instance.ref)
        await instance.destroy()
        for ref in (instance.ref, "", "..", "../..", instance.ref[:-1], f"{instance.ref}\n", "x" * 300):
            with pytest.raises(NotFoundError):
                await driver.adopt(ref)

    async def test_sandbox_that_ended_without_a_service_is_swept_and_not_adopted(self, harness: DriverHarness) -> None:
        before = await harness.driver_with(DriverCapability.ADOPT)
        with crashing_service(harness, "live") as (service, ref):
            service.kill()
            service.wait()
        instance = await before.adopt(ref)
        async with connect_sandbox(instance) as sandbox:
            await sandbox.link.shutdown()
            await instance.wait()
        driver = harness.new_driver()
        with pytest.raises(NotFoundError):
            await driver.adopt(ref)
        assert await driver.sweep(keep=()) == 1
        assert leftovers(harness.data_dir, harness.node) == ()

    async def test_sweep_removes_all_but_kept_and_adopted_sandboxes(self, harness: DriverHarness) -> None:
        before = await harness.driver_with(DriverCapability.ADOPT)
        booted = [await harness.boot(before) for _ in range(2)]
        refs = [instance.ref for instance in booted]
        driver = harness.new_driver()  # stands for a restarted service
        assert await driver.sweep(keep=refs) == 0
        assert await driver.sweep(keep=refs[1:]) == 1
        with pytest.raises(NotFoundError):
            await driver.adopt(refs[0])
        instance = await driver.adopt(refs[1])
        async with connect_sandbox(instance) as sandbox:
            assert (await sandbox.run("echo", "kept")).stdout == "kept\n"
        # A sweep does not destroy a sandbox that the driver has adopted.
        assert await driver.sweep(keep=()) == 0
        async with connect_sandbox(instance) as sandbox:
            assert (await sandbox.run("echo", "held")).stdout == "held\n"
        await instance.destroy()
        assert (await instance.wait()).reason is ExitReason.KILLED
        assert await driver.sweep(keep=()) == 0
        await asyncio.gather(*(each.destroy() for each in booted))

    async def test_sweep_spares_sandboxes_that_are_being_made(self, harness: DriverHarness) -> None:
        driver, swept = harness.new_driver(), [0]

        async def sweep_again_and_again() -> None:
            while True:
                swept.append(await driver.sweep(keep=()))

        sweeping = asyncio.create_task(sweep_again_and_again())
        try:
            booted = await asyncio.gather(*(harness.boot(driver) for _ in range(3)))
        finally:
            sweeping.cancel()
            await asyncio.wait({sweeping})
        assert sweeping.cancelled()
        assert sum(swept) == 0
        for instance in booted:
            async with connect_sandbox(instance) as sandbox:
                assert (await sandbox.run("echo", "spared")).stdout == "spared\n"
        await asyncio.gather(*(instance.destroy() for instance in booted))

    async def test_sweep_touches_nothing_of_another_node(self, harness: DriverHarness) -> None:
        other = replace(harness, node=new_node_id())
        async with harness.sandbox() as sandbox:
            assert await other.new_driver().sweep(keep=()) == 0
            assert (await sandbox.run("echo", "untouched")).stdout == "untouched\n"

    async def test_prepared_sandbox_of_a_killed_service_is_swept(self, harness: DriverHarness) -> None:
        with crashing_service(harness, "prepared") as (service, _):
            service.kill()
            service.wait()
        await harness.new_driver().sweep(keep=())
        assert wait_until_empty(lambda: leftovers(harness.data_dir, harness.node)) == ()

    async def test_service_may_be_killed_at_any_moment(self, harness: DriverHarness) -> None:
        delays = random.Random(harness.node)  # noqa: S311 - delays, not secrets
        for _ in range(_ROUNDS):
            with crashing_service(harness, "churn") as (service, _):
                await asyncio.sleep(delays.uniform(0, _MAX_DELAY_S))
                service.kill()
                service.wait()
            await harness.new_driver().sweep(keep=())
            assert wait_until_empty(lambda: leftovers(harness.data_dir, harness.node)) == ()
