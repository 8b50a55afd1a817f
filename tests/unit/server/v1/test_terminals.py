"""Terminals over a WebSocket: used, resized, left and gone back to; and what a bad client gets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sandlot.core.execution import terminals as core_terminals
from sandlot.model.access import OPERATOR
from tests.support.cases import cases
from tests.support.http import problem
from tests.support.service import Bench
from tests.support.until import until


@pytest.mark.real_guest
async def test_used_resized_and_ended(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    process = await started(http, url, "stty -echo; stty size; read name; echo hello $name; read x; stty size; exit 4", rows=30, cols=90)
    async with opened(at, f"{url}/processes/{process}/terminal?stdout_from=0") as screen:
        begun = json.loads(await screen.recv())
        assert (begun["event"], begun["id"], begun["offset"]) == ("started", process, 0)
        assert begun["pid"] > 1
        await shown(screen, b"30 90")
        await screen.send(b"you\n")
        await shown(screen, b"hello you")
        await screen.send(json.dumps({"resize": {"rows": 50, "cols": 100}}))
        await screen.send(b"\n")
        await shown(screen, b"50 100")
        exited = await event(screen, "exit")
        assert (exited["exit_code"], exited["reason"]) == (4, "exited")
        with pytest.raises(ConnectionClosed) as closed:
            await screen.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1000
    (known,) = (await http.get(f"{url}/processes")).json()["processes"]
    assert (known["pty"], known["running"], known["stdin_open"]) == (True, False, False)


@pytest.mark.real_guest
async def test_terminal_outlives_its_client_and_is_attached_again_by_offset(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    process = await started(http, url, "stty -echo; echo one; read x; echo two; read x")
    address = f"{url}/processes/{process}/terminal"
    async with opened(at, address) as screen:
        await shown(screen, b"one\r\n")
    gone = await connect(at, address)
    gone.transport.abort()
    async with opened(at, f"{address}?stdout_from=5&rows=7&cols=70") as screen:
        assert json.loads(await screen.recv())["offset"] == 5
        await screen.send(b"\n")
        assert await shown(screen, b"two") == b"two"
    assert (await http.get(f"{url}/processes/{process}")).json()["running"]
    assert (await http.post(f"{url}/processes/{process}/resize", json={"rows": 9, "cols": 9})).json() == {"running": True}


@pytest.mark.real_guest
async def test_a_slow_reader_holds_up_its_program_only_and_takes_bounded_memory(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    process = await started(http, url, "stty -opost; head -c 16000000 /dev/zero; echo end")
    screen = await connect(at, f"{url}/processes/{process}/terminal", max_queue=1)
    try:
        seen = [-1]

        async def stands_still() -> bool:
            await asyncio.sleep(0.5)
            seen.append((await http.get(f"{url}/processes/{process}")).json()["stdout_bytes"])
            return seen[-1] == seen[-2]

        await until(stands_still)
        assert seen[-1] < 8_000_000
        assert (await http.post(url + "/processes", json={"command": "echo fine"})).json()["stdout"] == "fine\n"
    finally:
        screen.transport.abort()


async def test_disconnect_is_noticed_while_typed_input_is_not_read(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    process = await started(http, url, "stty raw -echo; sleep 4351")
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    screen = await connect(at, f"{url}/processes/{process}/terminal")
    for _ in range(8):
        await screen.send(b"x" * 100_000)
    assert sandbox.activity.held == 1
    screen.transport.abort()
    await until(lambda: sandbox.activity.held == 0)
    assert (await http.get(f"{url}/processes/{process}")).json()["running"]


async def test_unread_input_delays_no_other_message_to_a_terminal(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    process = await started(http, url, "stty raw -echo; echo ready; sleep 4355")
    held_bytes = sandbox.buffers.taken_bytes
    async with opened(at, f"{url}/processes/{process}/terminal") as screen:
        await shown(screen, b"ready")
        for _ in range(10):
            await screen.send(b"x" * 100_000)
        await (await screen.ping())
        await screen.send(json.dumps({"resize": {"rows": 5, "cols": 50}}))
        await screen.send(json.dumps({"eof": True}))
        await until(lambda: sandbox.buffers.taken_bytes > held_bytes)
        await screen.send(json.dumps({"signal": "SIGKILL"}))
        assert (await event(screen, "exit"))["exit_code"] == 137
    await until(lambda: sandbox.activity.held == 0 and sandbox.buffers.taken_bytes == held_bytes)


async def test_a_visit_whose_typing_nobody_takes_ends_in_the_end(
    at: Bench, http: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_terminals, "STUCK_S", 0.5)
    sandbox = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    process = await started(http, url, "stty raw -echo; echo ready; sleep 4356")
    held_bytes = sandbox.buffers.taken_bytes
    async with opened(at, f"{url}/processes/{process}/terminal") as screen:
        await shown(screen, b"ready")
        for _ in range(4):
            await screen.send(b"x" * 1_000_000)
        assert (await event(screen, "failure"))["code"] == "limit_exceeded"
    await until(lambda: sandbox.activity.held == 0 and sandbox.buffers.taken_bytes == held_bytes)
    assert (await http.get(f"{url}/processes/{process}")).json()["running"]


@pytest.mark.real_guest
async def test_much_that_is_typed_comes_whole(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    process = await started(http, url, "stty raw -echo; echo ready; sleep 1; head -c 1000000 | sha256sum")
    content = os.urandom(1_000_000)
    async with opened(at, f"{url}/processes/{process}/terminal") as screen:
        await shown(screen, b"ready")
        for at_ in range(0, len(content), 250_000):
            await screen.send(content[at_ : at_ + 250_000])
        await shown(screen, hashlib.sha256(content).hexdigest().encode())


@cases("message", ["", "no json", "[]", "{}", '{"resize": 1}', '{"resize": {"rows": 0, "cols": 1}}', '{"signal": "SIGNOPE"}', "[" * 9999])
async def test_a_message_that_is_none_ends_the_visit_not_the_process(at: Bench, http: httpx.AsyncClient, url: str, message: str) -> None:
    process = await started(http, url, "sleep 4352")
    async with opened(at, f"{url}/processes/{process}/terminal") as screen:
        await screen.send(message)
        failure = await event(screen, "failure")
        assert (failure["code"], failure["status"]) == ("invalid_request", 400)
        with pytest.raises(ConnectionClosed) as closed:
            await screen.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
    assert (await http.get(f"{url}/processes/{process}")).json()["running"]


async def test_what_cannot_be_opened_is_answered_like_any_request(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    plain = (await http.post(f"{url}/processes", json={"argv": ["sleep", "4353"], "background": True})).json()["id"]
    cases = {
        f"{url}/processes/{'0' * 32}/terminal": (404, "process_not_found"),
        f"{url}/processes/{plain}/terminal": (409, "conflict"),
        f"{url}/processes/{plain}/terminal?stdout_from=x": (400, "invalid_request"),
        f"{url}/processes/{plain}/terminal?unknown=x": (400, "invalid_request"),
        f"/v1/sandboxes/sb-0000-0000000000000000/processes/{plain}/terminal": (404, "sandbox_not_found"),
        "/v1/nowhere": (404, "not_found"),
    }
    for address, expected in cases.items():
        with pytest.raises(InvalidStatus) as refused:
            await connect(at, address)
        response = refused.value.response
        assert response.headers["content-type"] == "application/problem+json"
        told = json.loads(response.body or b"")
        assert (told["status"], told["code"]) == expected, address
        assert response.status_code == expected[0]
        assert told["request_id"] == response.headers["x-request-id"]


@cases(
    "body",
    [
        {"command": "true", "pty": {"rows": 24, "cols": 80}},
        {"command": "true", "pty": {"rows": 0}, "background": True},
        {"command": "true", "pty": {}, "background": True, "stdin": "x"},
        {"command": "true", "track": ["/workspace"], "background": True},
        {"command": "true", "track": []},
    ],
)
async def test_what_cannot_be_on_a_terminal_or_tracked(http: httpx.AsyncClient, url: str, body: dict[str, Any]) -> None:
    problem(await http.post(f"{url}/processes", json=body), 400, "invalid_request")


async def test_a_plain_request_is_told_what_it_takes(http: httpx.AsyncClient, url: str) -> None:
    process = await started(http, url, "sleep 4354")
    told = await http.get(f"{url}/processes/{process}/terminal")
    problem(told, 426, "invalid_request")
    assert told.headers["upgrade"] == "websocket"
    problem(await http.get(f"{url}/processes/{'0' * 32}/terminal"), 404, "process_not_found")


async def started(http: httpx.AsyncClient, url: str, command: str, *, rows: int = 24, cols: int = 80) -> str:
    response = await http.post(f"{url}/processes", json={"command": command, "pty": {"rows": rows, "cols": cols}, "background": True})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def connect(at: Bench, address: str, **options: Any) -> ClientConnection:  # noqa: ANN401
    return await unix_connect(str(at.service.settings.socket), f"ws://sandlot{address}", compression=None, **options)


@asynccontextmanager
async def opened(at: Bench, address: str) -> AsyncIterator[ClientConnection]:
    screen = await connect(at, address)
    try:
        yield screen
    finally:
        await screen.close()


async def shown(screen: ClientConnection, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        message = await screen.recv()
        if isinstance(message, bytes):
            got += message
    return got[: got.index(wanted) + len(wanted)]


async def event(screen: ClientConnection, name: str) -> dict[str, Any]:
    while True:
        message = await screen.recv()
        if isinstance(message, str) and (told := json.loads(message))["event"] == name:
            return dict(told)
