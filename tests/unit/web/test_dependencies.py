"""The name of a sandbox in a path becomes its id before the operation, and costs one lookup."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.web.dependencies import cancel_on_disconnect
from tests.support.http import problem
from tests.support.scripted_node import ScriptedNode, entry, sandbox_info


async def test_name_in_a_path_is_looked_up_once_and_the_operation_gets_the_id(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    sandbox = sandbox_info(name="mine")
    scripted.script("sandboxes.get", sandbox)
    scripted.script("files.stat", entry())
    response = await api.get("/v1/sandboxes/mine/files/stat", params={"path": "/workspace"})
    assert response.status_code == 200, response.text
    assert [(call.operation, call["sandbox"] if call.operation == "files.stat" else call["id_or_name"]) for call in scripted.calls] == [
        ("sandboxes.get", "mine"),
        ("files.stat", sandbox.id),
    ]


async def test_id_in_a_path_is_not_looked_up(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    scripted.script("files.stat", entry())
    assert (await api.get(f"/v1/sandboxes/{sandbox_info().id}/files/stat", params={"path": "/workspace"})).status_code == 200
    assert [call.operation for call in scripted.calls] == ["files.stat"]


async def test_unknown_name_is_refused_before_the_body_is_read(scripted: ScriptedNode, api: httpx.AsyncClient) -> None:
    scripted.script("sandboxes.get", NotFoundError("There is no sandbox 'mine'.", code=ErrorCode.SANDBOX_NOT_FOUND))
    problem(await api.post("/v1/sandboxes/mine/code", content=b"not JSON"), 404, "sandbox_not_found")


async def test_disconnection_cancels_the_work_and_waits_for_its_end() -> None:
    ended = asyncio.Event()

    async def work() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async def receive() -> dict[str, str]:
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        await cancel_on_disconnect(Request({"type": "http"}, receive), work())
    assert ended.is_set()
