"""What a killed service leaves: taken over by the next one, or swept; never lost, never somebody else's."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from sandlot.model.errors import ConflictError, NotFoundError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import DriverCapability, ExitReason
from sandlot.testing.bench import Bench, meet
from sandlot.testing.survivor import MARK
from sandlot.testing.traces import settled, traces

_ROUNDS = 4
_LONGEST_S = 1.2


class RestartSuite:
    """See the module."""

    async def test_a_live_sandbox_is_adopted_after_its_service_was_killed(self, bench: Bench) -> None:
        driver = bench.start()
        if not (can := await asyncio.to_thread(driver.probe)).can(DriverCapability.ADOPT):
            pytest.skip(can.why_not(DriverCapability.ADOPT))
        with service_of(bench, "live") as (service, ref):
            service.kill()
            service.wait()
        assert await driver.sweep(keep=[ref]) == 0
        instance = await driver.adopt(ref)
        assert instance.ref == ref
        async with meet(instance) as subject:
            assert (await subject.run("cat", MARK)).stdout == "left by the service before\n"
            assert (await instance.usage()).memory_bytes > 0
            with pytest.raises(ConflictError):
                await driver.adopt(ref)
            await subject.link.shutdown()
            assert (await instance.wait()).reason is ExitReason.EXITED
        await instance.destroy()

    async def test_what_is_not_alive_is_not_adopted(self, bench: Bench) -> None:
        driver = bench.start()
        instance = await bench.boot(driver)
        other = replace(bench, node=new_node_id())
        with pytest.raises(NotFoundError):
            await other.start().adopt(instance.ref)
        await instance.destroy()
        for ref in (instance.ref, "", "..", "../..", instance.ref[:-1], f"{instance.ref}\n", "x" * 300):
            with pytest.raises(NotFoundError):
                await driver.adopt(ref)

    async def test_a_sandbox_that_ended_meanwhile_is_not_adopted_but_swept(self, bench: Bench) -> None:
        with service_of(bench, "live") as (service, ref):
            service.kill()
            service.wait()
        before = bench.start()
        instance = await before.adopt(ref)
        async with meet(instance) as subject:
            await subject.link.shutdown()
            await instance.wait()
        driver = bench.start()
        with pytest.raises(NotFoundError):
            await driver.adopt(ref)
        assert await driver.sweep(keep=()) == 1
        assert traces(bench.data_dir, bench.node) == ()

    async def test_a_sweep_takes_what_is_not_kept(self, bench: Bench) -> None:
        before = bench.start()
        booted = [await bench.boot(before) for _ in range(2)]
        refs = [instance.ref for instance in booted]
        driver = bench.start()  # as after a restart of the service
        assert await driver.sweep(keep=refs) == 0
        assert await driver.sweep(keep=refs[1:]) == 1
        with pytest.raises(NotFoundError):
            await driver.adopt(refs[0])
        instance = await driver.adopt(refs[1])
        async with meet(instance) as subject:
            assert (await subject.run("echo", "kept")).stdout == "kept\n"
        # What a driver holds itself is no stray.
        assert await driver.sweep(keep=()) == 0
        async with meet(instance) as subject:
            assert (await subject.run("echo", "held")).stdout == "held\n"
        await instance.destroy()
        assert (await instance.wait()).reason is ExitReason.KILLED
        assert await driver.sweep(keep=()) == 0
        await asyncio.gather(*(each.destroy() for each in booted))

    async def test_a_sweep_touches_nothing_of_another_node(self, bench: Bench) -> None:
        other = replace(bench, node=new_node_id())
        async with bench.sandbox() as subject:
            assert await other.start().sweep(keep=()) == 0
            assert (await subject.run("echo", "untouched")).stdout == "untouched\n"

    async def test_a_blank_of_a_killed_service_is_swept(self, bench: Bench) -> None:
        with service_of(bench, "blank") as (service, _):
            service.kill()
            service.wait()
        await bench.start().sweep(keep=())
        assert settled(lambda: traces(bench.data_dir, bench.node)) == ()

    async def test_a_service_may_be_killed_at_any_moment(self, bench: Bench) -> None:
        source = random.Random(bench.node)  # noqa: S311 - moments, not secrets
        for _ in range(_ROUNDS):
            with service_of(bench, "churn") as (service, _):
                await asyncio.sleep(source.uniform(0, _LONGEST_S))
                service.kill()
                service.wait()
            await bench.start().sweep(keep=())
            assert settled(lambda: traces(bench.data_dir, bench.node)) == ()


@contextmanager
def service_of(bench: Bench, mode: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service in a process of its own, and the first line that it says."""
    arguments = [mode, bench.driver, bench.node, str(bench.data_dir), str(bench.root.path), bench.root.digest]
    service = subprocess.Popen([sys.executable, "-m", "sandlot.testing.survivor", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        if service.stdout is None:
            raise AssertionError("started without a pipe")
        said = service.stdout.readline().strip()
        assert said, "the service failed"
        yield service, said
    finally:
        service.kill()
        service.communicate()
