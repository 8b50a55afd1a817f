"""A key that is revoked or expires ends everything that was opened with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from sandlot.model.access import OwnerId
from sandlot.model.records import KeyChange, KeyRecord
from sandlot.server.process import serve_in_background
from sandlot.web import listener
from tests.support.clock import ManualClock
from tests.support.service import BASE, Bench, bench
from tests.support.until import until

ALICE, BOB = OwnerId("a" * 12), OwnerId("b" * 12)


async def revoke(at: Bench, _: ManualClock, key: KeyRecord) -> None:
    await at.service.api_keys.revoke(key.name)


async def revoke_elsewhere(at: Bench, clock: ManualClock, key: KeyRecord) -> None:
    assert await at.service.store.keys.revoke(key.name, clock.now()) is not None


async def expire(_: Bench, clock: ManualClock, key: KeyRecord) -> None:
    clock.advance(60)
    assert clock.now() == key.expires_at


async def expire_by_update(at: Bench, clock: ManualClock, key: KeyRecord) -> None:
    await at.service.api_keys.update(key.id, KeyChange(expires_at=clock.now()))


async def expire_by_update_elsewhere(at: Bench, clock: ManualClock, key: KeyRecord) -> None:
    assert await at.service.store.keys.update(key.id, KeyChange(expires_at=clock.now())) is not None


@pytest.mark.parametrize("end", [revoke, revoke_elsewhere, expire, expire_by_update, expire_by_update_elsewhere])
async def test_revoked_or_expired_key_closes_open_terminals_and_streams(
    tmp_path: Path, end: Callable[[Bench, ManualClock, KeyRecord], Awaitable[None]]
) -> None:
    clock = ManualClock()
    async with bench(tmp_path, clock=clock) as at:
        api_keys = at.service.api_keys
        record, secret = await api_keys.create("stolen", expires_at=clock.now() + timedelta(seconds=60))
        principal = api_keys.verify(secret)
        assert principal is not None
        sandbox = await at.sandboxes.create(principal, BASE)
        tcp = listener.tcp_socket("127.0.0.1", 0)
        there, key = f"127.0.0.1:{tcp.getsockname()[1]}", {"Authorization": f"Bearer {secret}"}
        async with (
            asyncio.timeout(60),
            serve_in_background(at.service, [tcp]),
            httpx.AsyncClient(base_url=f"http://{there}", headers=key, timeout=60, trust_env=False) as http,
        ):
            url = f"/v1/sandboxes/{sandbox.id}/processes"
            process = (await http.post(url, json={"command": "cat", "pty": {}, "background": True})).json()["id"]
            idle = sandbox.activity.held
            async with (
                connect(f"ws://{there}{url}/{process}/terminal", additional_headers=key, proxy=None) as terminal,
                http.stream("GET", f"{url}/{process}/output", params={"follow": "true"}, headers={"Accept": "text/event-stream"}) as output,
                http.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as happens,
            ):
                await terminal.recv()
                assert (output.status_code, happens.status_code) == (200, 200)
                await end(at, clock, record)
                await terminal.wait_closed()
                for stream in (output, happens):
                    with pytest.raises(httpx.RemoteProtocolError):
                        await stream.aread()
            await until(lambda: sandbox.activity.held == idle)
            assert (await http.get("/v1/sandboxes")).status_code == 401
