"""A key that is taken away takes along what was opened with it, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from sandlot.model.access import OwnerId
from sandlot.server.process import serve_in_background
from sandlot.web import listener
from tests.support.service import BASE, bench
from tests.support.until import until

ALICE, BOB = OwnerId("a" * 12), OwnerId("b" * 12)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "by another process"])
async def test_revoked_key_closes_open_terminals_and_streams(tmp_path: Path, elsewhere: bool) -> None:  # noqa: FBT001
    async with bench(tmp_path) as at:
        api_keys = at.service.api_keys
        record, secret = await api_keys.create("stolen")
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
            process = (await http.post(url, json={"command": "cat", "pty": {}, "background": True})).json()["process"]
            idle = sandbox.activity.held
            async with (
                connect(f"ws://{there}{url}/{process}/terminal", additional_headers=key, proxy=None) as terminal,
                http.stream("GET", f"{url}/{process}/output", params={"follow": "true"}, headers={"Accept": "text/event-stream"}) as output,
                http.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as happens,
            ):
                await terminal.recv()
                assert (output.status_code, happens.status_code) == (200, 200)
                if elsewhere:
                    assert await at.service.store.keys.revoke(record.name, at.service.internals.clock.now()) is not None
                else:
                    await api_keys.revoke(record.name)
                await terminal.wait_closed()
                for stream in (output, happens):
                    with pytest.raises(httpx.RemoteProtocolError):
                        await stream.aread()
            await until(lambda: sandbox.activity.held == idle)
            assert (await http.get("/v1/sandboxes")).status_code == 401
