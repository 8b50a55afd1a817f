"""Connections that break under a run: what is asked again under its key goes on, as one answer and as events."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from sandlot.model.access import OPERATOR
from tests.support.service import Bench, tcp_client
from tests.support.until import until

CODE = "import time\nfor n in range(15):\n    print(n, flush=True)\n    time.sleep(0.1)\nprint('end')"


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_broken_connection_does_not_interrupt_a_run_with_a_key(at: Bench, http: httpx.AsyncClient, accept: str) -> None:
    key = (await http.post("/v1/keys", json={"name": "ann"})).json()["key"]
    body = {"code": CODE}
    content = json.dumps(body)
    async with tcp_client(at.service, str(key)) as tcp:
        made = await tcp.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}})
        assert made.status_code == 201, made.text
        (sandbox,) = at.sandboxes.list(OPERATOR)
        path = f"/v1/sandboxes/{sandbox.id}/code"
        head = "".join(f"{name}: {value}\r\n" for name, value in {**tcp.headers, "accept": accept, "idempotency-key": "mine"}.items())
        reader, writer = await asyncio.open_connection(tcp.base_url.host, tcp.base_url.port)
        writer.write(
            f"POST {path} HTTP/1.1\r\nhost: x\r\n{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n{content}".encode()
        )
        await writer.drain()
        await until(lambda: bool(at.node.code.executions.table.of(sandbox).recent))
        (execution,) = at.node.code.executions.table.of(sandbox).recent
        running = at.node.code.executions.get(sandbox, execution)
        assert running is not None
        writer.transport.abort()
        await until(lambda: len(running.clients) == 0)
        done = (await tcp.post(path, json=body, headers={"Idempotency-Key": "mine"})).json()
        assert (done["status"], done["stdout"].splitlines()[-1], done["error"]) == ("ok", "end", None)
        assert [done["id"]] == list(at.node.code.executions.table.of(sandbox).recent)
    del reader
