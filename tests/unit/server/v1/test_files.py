"""Files over HTTP: streamed both ways, and everything that can be wrong with a path."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import httpx
import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.errors import SandboxEndedError
from tests.support.cases import cases
from tests.support.http import problem
from tests.support.scripted_node import Call, ScriptedNode, ScriptedStream, entry
from tests.support.service import Bench
from tests.support.until import until

CONTENT = "/files/content"


async def test_written_looked_at_and_read(http: httpx.AsyncClient, url: str) -> None:
    content = os.urandom(3_000_000)
    written = (await http.put(url + CONTENT, params={"path": "/workspace/ü/a", "mode": 0o640}, content=content)).json()
    assert set(written) == {"name", "path", "kind", "size_bytes", "mode", "uid", "gid", "modified_at", "target"}
    assert (written["path"], written["kind"], written["size_bytes"], written["mode"], written["uid"]) == (
        "/workspace/ü/a",
        "file",
        3_000_000,
        0o640,
        1000,
    )
    assert (await http.get(url + CONTENT, params={"path": "/workspace/ü/a"})).content == content
    part = await http.get(url + CONTENT, params={"path": "/workspace/ü/a", "offset": 10, "length": 5})
    assert part.content == content[10:15]
    assert part.headers["content-type"] == "application/octet-stream"
    assert (await http.get(url + "/files/stat", params={"path": "/workspace/ü/a"})).json() == written
    listing = (await http.get(url + "/files", params={"path": "/workspace"})).json()
    assert ([entry["name"] for entry in listing["entries"]], listing["more"]) == (["ü"], False)


async def test_folders_moves_links_and_removal(http: httpx.AsyncClient, url: str) -> None:
    assert (await http.post(url + "/files/directories", json={"path": "/workspace/d/e"})).json()["kind"] == "directory"
    await http.put(url + CONTENT, params={"path": "/workspace/d/f"}, content=b"x")
    moved = (await http.post(url + "/files/move", json={"path": "/workspace/d/f", "to": "/workspace/g"})).json()
    assert moved["path"] == "/workspace/g"
    await http.put(url + CONTENT, params={"path": "/workspace/h"}, content=b"y")
    problem(await http.post(url + "/files/move", json={"path": "/workspace/g", "to": "/workspace/h"}), 409, "path_exists")
    assert (await http.post(url + "/files/move", json={"path": "/workspace/g", "to": "/workspace/h", "overwrite": True})).status_code == 200
    await http.post(url + "/processes", json={"command": "ln -s h link"})
    link = (await http.get(url + "/files/stat", params={"path": "/workspace/link", "follow": "false"})).json()
    assert (link["kind"], link["target"]) == ("symlink", "h")
    assert (await http.get(url + "/files/stat", params={"path": "/workspace/link"})).json()["kind"] == "file"
    response = await http.delete(url + "/files", params={"path": "/workspace/d"})
    assert response.status_code in {400, 409}
    assert (await http.delete(url + "/files", params={"path": "/workspace/d", "recursive": "true"})).json() == {"removed": 2}
    problem(await http.delete(url + "/files", params={"path": "/workspace/d"}), 404, "path_not_found")


async def test_an_upload_that_breaks_off_leaves_the_old_file(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    where = {"path": "/workspace/a"}
    await http.put(url + CONTENT, params=where, content=b"old")
    begun = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"new" * 20_000
        begun.set()
        await asyncio.Event().wait()

    uploading = asyncio.create_task(http.put(url + CONTENT, params=where, content=slowly()))
    await begun.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading

    async def only_the_old_one() -> bool:
        return [entry["name"] for entry in (await http.get(url + "/files?path=/workspace")).json()["entries"]] == ["a"]

    await until(only_the_old_one)
    assert (await http.get(url + CONTENT, params=where)).content == b"old"
    assert at.sandboxes.held == 1


@pytest.mark.real_guest
async def test_write_in_place_keeps_inode_links_and_mode(http: httpx.AsyncClient, url: str) -> None:
    describe = {"command": "stat -c '%i %a %h' file; cat hard; readlink soft"}
    await http.post(url + "/processes", json={"command": "echo old-old > file; chmod 640 file; ln file hard; ln -s file soft"})
    before = (await http.post(url + "/processes", json=describe)).json()["stdout"]
    where = {"path": "/workspace/soft", "mode": "384", "in_place": "true"}
    assert (await http.put(url + CONTENT, params=where, content=b"new\n")).json()["mode"] == 0o640
    assert (await http.post(url + "/processes", json=describe)).json()["stdout"] == before.replace("old-old", "new")
    await http.post(url + "/processes", json={"command": "mkfifo fifo"})
    problem(await http.put(url + CONTENT, params={"path": "/workspace/fifo", "in_place": "true"}, content=b"x"), 400, "path_not_regular")


@pytest.mark.real_guest
async def test_hard_links_keep_one_content(http: httpx.AsyncClient, url: str) -> None:
    describe = {"command": "stat -c '%i %h' first; cat second"}
    await http.post(url + "/processes", json={"command": "echo old-old > first; ln first second"})
    before = (await http.post(url + "/processes", json=describe)).json()["stdout"]
    assert (await http.put(url + CONTENT, params={"path": "/workspace/first", "mode": "384"}, content=b"new\n")).json()["mode"] == 0o600
    assert (await http.post(url + "/processes", json=describe)).json()["stdout"] == before.replace("old-old", "new")


async def test_write_in_place_refuses_append(http: httpx.AsyncClient, url: str) -> None:
    where = {"path": "/workspace/file"}
    await http.put(url + CONTENT, params=where, content=b"old")
    refused = await http.put(url + CONTENT, params={**where, "in_place": "true", "append": "true"}, content=b"new")
    assert problem(refused, 400, "invalid_request")["fields"] == {"field": "in_place"}
    assert (await http.get(url + CONTENT, params=where)).content == b"old"


async def test_interrupted_write_in_place_leaves_the_part_that_was_written(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    where = {"path": "/workspace/file"}
    await http.put(url + CONTENT, params=where, content=b"old")

    async def endless() -> AsyncIterator[bytes]:
        yield b"new" * 20_000
        await asyncio.Event().wait()

    uploading = asyncio.create_task(http.put(url + CONTENT, params={**where, "in_place": "true"}, content=endless()))

    async def is_partly_written() -> bool:
        return (await http.get(url + CONTENT, params=where)).content.startswith(b"new")

    await until(is_partly_written)
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    await until(lambda: at.sandboxes.held == 1)
    assert (await http.get(url + CONTENT, params=where)).content.startswith(b"new")


@pytest.mark.real_guest
async def test_a_download_that_nobody_reads_holds_no_memory_and_ends_with_its_client(http: httpx.AsyncClient, url: str) -> None:
    await http.post(url + "/processes", json={"command": "truncate -s 200000000 big"})
    before = resident()
    for _ in range(4):
        async with http.stream("GET", url + CONTENT, params={"path": "/workspace/big"}) as response:
            async for _piece in response.aiter_raw():
                break
            await asyncio.sleep(0.1)
    assert resident() - before < 64_000_000
    assert (await http.get(url + "/files/stat?path=/workspace/big")).json()["size_bytes"] == 200_000_000


@pytest.mark.real_guest
async def test_a_sandbox_that_ends_cuts_the_download(at: Bench, http: httpx.AsyncClient, url: str) -> None:
    await http.post(url + "/processes", json={"command": "truncate -s 200000000 big"})

    async with http.stream("GET", url + CONTENT, params={"path": "/workspace/big"}) as response:
        pieces = response.aiter_raw()
        await anext(pieces)
        at.driver.booted[0].crash()
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in pieces:
                pass


async def test_error_in_a_download_breaks_the_response(scripted: ScriptedNode, local: httpx.AsyncClient) -> None:
    stream = ScriptedStream(b"x" * 100_000, SandboxEndedError("The sandbox has ended."), entry=entry(size=200_000))
    scripted.script("files.read", stream)
    async with local.stream(
        "GET", "/v1/sandboxes/sb-node-aaaaaaaaaaaaaaaa/files/content", params={"path": "/workspace/big", "offset": 7}
    ) as response:
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            async for _ in response.aiter_raw():
                pass
    await stream.closed.wait()
    expected = {
        "principal": OPERATOR,
        "sandbox": "sb-node-aaaaaaaaaaaaaaaa",
        "path": "/workspace/big",
        "offset": 7,
        "length": None,
        "user": None,
    }
    assert scripted.calls[0] == Call("files.read", expected)


async def test_download_is_closed_when_its_client_leaves(scripted: ScriptedNode, local: httpx.AsyncClient) -> None:
    stream = ScriptedStream(b"x" * 100_000, asyncio.Event(), b"never", entry=entry(size=200_000))
    scripted.script("files.read", stream)
    async with local.stream("GET", "/v1/sandboxes/sb-node-aaaaaaaaaaaaaaaa/files/content", params={"path": "/workspace/big"}) as response:
        await anext(response.aiter_raw())
        assert not stream.closed.is_set()
    await stream.closed.wait()


@cases(
    "method,path,query,body,status,code",
    [
        ("GET", CONTENT, {}, None, 400, "invalid_request"),
        ("GET", CONTENT, {"path": ""}, None, 400, "path_invalid"),
        ("GET", CONTENT, {"path": "/a\0b"}, None, 400, "path_invalid"),
        ("GET", CONTENT, {"path": "/" + "x" * 5000}, None, 400, "path_invalid"),
        ("GET", CONTENT, {"path": "/nope"}, None, 404, "path_not_found"),
        ("GET", CONTENT, {"path": "/etc"}, None, 400, "path_is_directory"),
        ("GET", CONTENT, {"path": "/etc/shadow"}, None, 403, "permission_denied"),
        ("GET", CONTENT, {"path": "/etc/passwd", "offset": "-1"}, None, 400, "invalid_request"),
        ("GET", CONTENT, {"path": "/etc/passwd", "user": "nobody"}, None, 400, "invalid_request"),
        ("GET", CONTENT, {"path": "/etc/passwd", "lenght": "1"}, None, 400, "invalid_request"),
        ("PUT", CONTENT, {"path": "/etc/x"}, None, 403, "permission_denied"),
        ("PUT", CONTENT, {"path": "/workspace/a/b", "parents": "false"}, None, 404, "path_not_found"),
        ("PUT", CONTENT, {"path": "/workspace/a", "mode": "99999"}, None, 400, "invalid_request"),
        ("GET", "/files", {"path": "/nope"}, None, 404, "path_not_found"),
        ("GET", "/files/stat", {"path": "/nope"}, None, 404, "path_not_found"),
        ("POST", "/files/directories", {}, {"path": "/etc/passwd"}, 409, "path_exists"),
        ("POST", "/files/directories", {}, {"path": "/workspace/x\ud800"}, 400, "invalid_request"),
        ("POST", "/files/move", {}, {"path": "/workspace/x", "to": "/workspace/y"}, 404, "path_not_found"),
        ("POST", "/files/move", {}, {"path": "/workspace/x"}, 400, "invalid_request"),
        ("DELETE", "/files", {"path": "/workspace/x"}, None, 404, "path_not_found"),
    ],
)
async def test_what_makes_no_sense_is_told(
    http: httpx.AsyncClient,
    url: str,
    method: str,
    path: str,
    query: dict[str, str],
    body: object,
    status: int,
    code: str,
) -> None:
    content = None if body is None else json.dumps(body).encode()
    response = await http.request(method, url + path, params=query, content=content, headers={"Content-Type": "application/json"})
    problem(response, status, code)
    assert (await http.get(url + "/files?path=/workspace")).json()["entries"] == []


def resident() -> int:
    """This process's memory; the service is in it."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
