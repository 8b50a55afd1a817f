"""Trees over HTTP: packed, unpacked, watched; whether something is there, and parts of a file."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator

import httpx
import pytest

from sandlot.core.execution.helpers import is_helper
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from tests.support.archives import archive, entry
from tests.support.cases import cases
from tests.support.http import events, problem
from tests.support.service import Bench
from tests.support.until import until

ARCHIVE = "/files/archive"


async def helpers(sandbox: Sandbox) -> int:
    """How many programs of ours the guest knows of, running or over."""
    async with sandbox.connection() as link:
        return sum(is_helper(info.argv) for info in await link.processes.list())


@pytest.fixture
async def sandbox(at: Bench, http: httpx.AsyncClient, url: str) -> AsyncIterator[Sandbox]:
    """The sandbox of the test; in the end nothing that ran in it for the service may be left."""
    assert not http.is_closed, "it is looked at before the service stops"
    here = at.sandboxes.find(url.rpartition("/")[2], OPERATOR)
    yield here

    async def none() -> bool:
        return await helpers(here) == 0 and here.activity.held == 0

    await until(none)


@pytest.mark.usefixtures("sandbox")
@cases("form", ["tar", "tar.gz"])
@pytest.mark.real_guest
async def test_a_tree_goes_in_and_comes_out(http: httpx.AsyncClient, url: str, form: str) -> None:
    content = os.urandom(1_000_000)
    raw = archive(
        entry("sub/", tarfile.DIRTYPE, mode=0o755),
        entry("sub/a", content=content),
        entry("b", content=b"b"),
        entry("link", tarfile.SYMTYPE, target="b"),
    )
    unpacked = await http.post(url + ARCHIVE, params={"path": "/workspace/in"}, content=raw)
    assert unpacked.json() == {"files": 2, "directories": 1, "links": 1, "size_bytes": 1_000_001, "skipped_links": []}
    answer = await http.get(url + ARCHIVE, params={"path": "/workspace/in", "format": form})
    assert answer.headers["content-type"] == ("application/gzip" if form == "tar.gz" else "application/x-tar")
    again = await http.post(url + ARCHIVE, params={"path": "/workspace/out", "user": "root"}, content=answer.content)
    assert again.json() == unpacked.json()
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as opened:
        member = opened.extractfile("sub/a")
        assert member is not None
        assert member.read() == content
    owner = (await http.get(url + "/files/stat", params={"path": "/workspace/out/b"})).json()["uid"]
    assert owner == 0, "root unpacked it"


@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_guest
async def test_what_is_wrong_with_an_archive_is_told_by_the_entry(http: httpx.AsyncClient, url: str) -> None:
    where = {"path": "/workspace"}
    bad = problem(await http.post(url + ARCHIVE, params=where, content=archive(entry("../out", content=b"x"))), 400, "invalid_request")
    assert "'../out'" in bad["detail"]
    problem(await http.post(url + ARCHIVE, params=where, content=b""), 400, "invalid_request")
    problem(await http.post(url + ARCHIVE, params={"path": "/etc"}, content=archive(entry("a", content=b"x"))), 403, "permission_denied")
    problem(await http.post(url + ARCHIVE, params={"path": ""}, content=archive()), 400, "path_invalid")
    problem(await http.get(url + ARCHIVE, params={"path": "/workspace/none"}), 404, "path_not_found")
    problem(await http.get(url + ARCHIVE, params={"path": "/root"}), 403, "permission_denied")
    problem(await http.get(url + ARCHIVE, params={"path": "/dev/null"}), 400, "path_not_regular")


@pytest.mark.usefixtures("sandbox")
@pytest.mark.real_guest
async def test_archive_that_cannot_be_packed_to_its_end_is_cut(http: httpx.AsyncClient, url: str) -> None:
    for rights, what in (("0", "d/b"), ("600", "d")):
        await http.post(url + "/processes", json={"command": f"mkdir -p d; echo a > d/a; echo b > d/b; chmod {rights} {what}"})
        with pytest.raises(httpx.RemoteProtocolError):
            await http.get(url + ARCHIVE, params={"path": "/workspace/d"})
    assert (await http.get(url + ARCHIVE, params={"path": "/workspace/d", "user": "root"})).status_code == 200


@pytest.mark.real_guest
async def test_disconnect_during_an_archive_leaves_no_process_and_no_partial_file(
    at: Bench, http: httpx.AsyncClient, url: str, sandbox: Sandbox
) -> None:
    raw = archive(entry("big", content=os.urandom(2_000_000)))
    begun = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield raw[:1_000_000]
        begun.set()
        await asyncio.Event().wait()

    uploading = asyncio.create_task(http.post(url + ARCHIVE, params={"path": "/workspace"}, content=slowly()))
    await begun.wait()
    assert await helpers(sandbox) == 1
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    await http.put(url + "/files/content", params={"path": "/workspace/all"}, content=os.urandom(20_000_000))
    async with http.stream("GET", url + ARCHIVE, params={"path": "/workspace"}) as answer:
        async for _ in answer.aiter_bytes():
            break

    async def nothing_half() -> bool:
        names = [found["name"] for found in (await http.get(url + "/files?path=/workspace")).json()["entries"]]
        return names == ["all"] and await helpers(sandbox) == 0

    await until(nothing_half)
    assert at.sandboxes.held == 1


@pytest.mark.real_guest
async def test_disconnect_is_noticed_while_unpacking_is_stopped(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    raw = archive(entry("big", content=bytes(5_000_000)))
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield raw[:1000]
        begun.set()
        await stopped.wait()
        yield raw[1000:]

    async def one_helper() -> bool:
        return await helpers(sandbox) == 1

    uploading = asyncio.create_task(http.post(url + ARCHIVE, params={"path": "/workspace"}, content=slowly()))
    await begun.wait()
    await until(one_helper)
    async with sandbox.connection() as link:
        (program,) = await link.processes.list()
        await link.processes.signal(program.process, 19)
    stopped.set()
    await asyncio.sleep(0.5)  # it sends all that is taken
    assert sandbox.activity.held
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    # Its fixture waits until nothing is held, and no program left.


@pytest.mark.real_guest
async def test_a_watch_that_nobody_follows_any_more_ends(http: httpx.AsyncClient, url: str, sandbox: Sandbox) -> None:
    async with http.stream("GET", url + "/files/watch", params={"path": "/workspace"}) as answer:
        async for _ in events(answer):
            break
        assert await helpers(sandbox) == 1
        assert (await http.get(url + "/processes")).json()["processes"] == [], "ours are nobody's"


async def test_whether_something_is_there(http: httpx.AsyncClient, url: str) -> None:
    await http.post(url + "/processes", json={"command": "ln -s nowhere link"})
    for path, follow, there in (
        ("/workspace", True, True),
        ("/workspace/none", True, False),
        ("/workspace/link", True, False),
        ("/workspace/link", False, True),
        ("/etc/passwd/below", True, False),
    ):
        answer = await http.get(url + "/files/exists", params={"path": path, "follow": str(follow).lower()})
        assert answer.json() == {"exists": there}
    problem(await http.get(url + "/files/exists", params={"path": "/root/x"}), 403, "permission_denied")


async def test_a_range_of_a_file(http: httpx.AsyncClient, url: str) -> None:
    where = {"path": "/workspace/a"}
    await http.put(url + "/files/content", params=where, content=bytes(range(100)))
    part = await http.get(url + "/files/content", params=where, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, bytes(range(10, 20)))
    assert (part.headers["content-range"], part.headers["content-length"]) == ("bytes 10-19/100", "10")
    assert (await http.get(url + "/files/content", params=where, headers={"Range": "bytes=-1"})).content == bytes([99])
    whole = await http.get(url + "/files/content", params=where, headers={"Range": "bytes=0-1,5-6"})
    assert (whole.status_code, whole.content, whole.headers["accept-ranges"]) == (200, bytes(range(100)), "bytes")
    beyond = await http.get(url + "/files/content", params=where, headers={"Range": "bytes=100-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */100")
