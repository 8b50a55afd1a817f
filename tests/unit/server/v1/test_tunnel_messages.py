"""Messages of a tunnel: both halves, wrong messages, and errors before and after the upgrade."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError
from sandlot.server.composition import RunningService
from tests.support.scripted_node import Call, ScriptedNode, ScriptedStream


def tunnel(*items: bytes | Exception | asyncio.Event) -> ScriptedStream[bytes]:
    """Return a tunnel that has ended when both directions are closed."""
    stream = ScriptedStream[bytes](*items)
    vars(stream)["wait_ended"] = stream.ended.wait
    return stream


@asynccontextmanager
async def opened(served: RunningService, port: int = 8000) -> AsyncIterator[ClientConnection]:
    path = f"/v1/sandboxes/sb-node-aaaaaaaaaaaaaaaa/ports/{port}/tunnel"
    async with unix_connect(str(served.settings.socket), f"ws://sandlot{path}", compression=None) as made:
        yield made


async def closed(socket: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as over:
        await socket.recv()
    assert over.value.rcvd is not None
    return over.value.rcvd.code


async def test_each_half_ends_by_itself(scripted: ScriptedNode, served: RunningService) -> None:
    last = asyncio.Event()
    stream = tunnel(b"first", last, b"last")
    scripted.script("tunnels.connect", stream)
    async with opened(served) as socket:
        assert await socket.recv() == b"first"
        await socket.send(b"over")
        await socket.send(json.dumps({"end": True}))
        await stream.ended.wait()
        assert stream.sent == [b"over"]
        last.set()
        assert await socket.recv() == b"last"
        assert json.loads(await socket.recv()) == {"event": "end"}
        assert await closed(socket) == 1000
    await stream.closed.wait()
    assert scripted.calls[0] == Call("tunnels.connect", {"principal": OPERATOR, "sandbox": "sb-node-aaaaaaaaaaaaaaaa", "port": 8000})


async def test_client_that_closes_in_the_middle_closes_the_tunnel_without_its_end(scripted: ScriptedNode, served: RunningService) -> None:
    stream = tunnel(b"x", asyncio.Event())
    scripted.script("tunnels.connect", stream)
    async with opened(served) as socket:
        assert await socket.recv() == b"x"
    await stream.closed.wait()
    assert not stream.ended.is_set()


async def test_wrong_message_is_a_failure_and_closes_the_tunnel(scripted: ScriptedNode, served: RunningService) -> None:
    for said in ("{}", "x", '{"end": 1}', '{"end": true, "x": 1}', "[" * 10_000):
        stream = tunnel(asyncio.Event())
        scripted.script("tunnels.connect", stream)
        async with opened(served) as socket:
            await socket.send(said)
            told = json.loads(await socket.recv())
            assert (told["event"], told["code"]) == ("failure", "invalid_request")
            assert await closed(socket) == 1008
        await stream.closed.wait()


async def test_bytes_after_the_end_are_a_failure(scripted: ScriptedNode, served: RunningService) -> None:
    stream = tunnel(asyncio.Event())
    scripted.script("tunnels.connect", stream)
    async with opened(served) as socket:
        await socket.send('{"end": true}')
        await socket.send(b"after it")
        assert json.loads(await socket.recv())["code"] == "invalid_request"
    assert stream.sent == []


async def test_error_of_the_program_is_a_failure_after_what_it_has_sent(scripted: ScriptedNode, served: RunningService) -> None:
    scripted.script("tunnels.connect", tunnel(b"x", ConflictError("The program has reset the connection.", code=ErrorCode.CONFLICT)))
    async with opened(served) as socket:
        assert await socket.recv() == b"x"
        told = json.loads(await socket.recv())
        assert (told["event"], told["code"]) == ("failure", "conflict")
        assert await closed(socket) == 1011


async def test_errors_of_the_start_are_responses_before_the_upgrade(scripted: ScriptedNode, served: RunningService) -> None:
    for error, status in (
        (InvalidRequestError("`port` is 0.", code=ErrorCode.INVALID_REQUEST), 400),
        (NotFoundError("No program listens on the port.", code=ErrorCode.PORT_NOT_FOUND), 404),
    ):
        scripted.script("tunnels.connect", error)
        with pytest.raises(InvalidStatus) as refused:
            async with opened(served):
                pass
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body or b"")["code"] == error.code
