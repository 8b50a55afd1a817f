"""Sleep states of the processors while requests arrive, with simulated time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandlot.host.cpu_latency import HOLD_S, CpuLatency
from tests.support.simulation import simulate


def run(program: Callable[[], Awaitable[None]]) -> None:
    async def simulated() -> None:
        await program()

    simulate(simulated, seed=1)


def is_held(device: Path) -> bool:
    return str(device) in [os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()]


def test_limit_is_held_until_a_time_after_the_last_request(tmp_path: Path) -> None:
    device = tmp_path / "latency"
    device.touch()

    async def program() -> None:
        latency = CpuLatency(device)
        assert not is_held(device)
        latency.hold()
        assert device.read_bytes() == bytes(4)
        for _ in range(3):
            await asyncio.sleep(HOLD_S * 0.9)
            assert is_held(device)
            latency.hold()
        await asyncio.sleep(HOLD_S * 1.1)
        assert not is_held(device)
        latency.hold()
        assert is_held(device)
        latency.close()
        assert not is_held(device)

    run(program)


def test_host_without_the_device_is_served(tmp_path: Path) -> None:
    async def program() -> None:
        latency = CpuLatency(tmp_path / "missing")
        latency.hold()
        latency.close()

    run(program)
