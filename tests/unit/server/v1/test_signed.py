"""Signed URLs over TCP: used by somebody without a key, ended with the key that made them, bounded like it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

from sandlot.core.access.api_keys import ApiKeys
from sandlot.model.access import Quota
from sandlot.model.specs import MIB
from sandlot.server import data_dir
from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener
from tests.support.http import problem
from tests.support.service import bench
from tests.support.serving import folder
from tests.support.until import until

__all__ = ["folder"]


@dataclass
class Open:
    """A service on TCP, one sandbox of a key's, and a client without one."""

    api_keys: ApiKeys
    owner: httpx.AsyncClient
    anybody: httpx.AsyncClient
    url: str
    base: str

    async def sign(self, path: str = "/workspace/a", method: str = "GET", expires_in: float = 600) -> str:
        answer = await self.owner.post(f"{self.url}/files/signed-urls", json={"path": path, "method": method, "expires_in": expires_in})
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["method"] == method
        signed: str = told["url"]
        assert signed.startswith(f"{self.base}/v1/signed/files/content?")
        return signed


@pytest.fixture
async def here(folder: Path) -> AsyncIterator[Open]:
    tcp = listener.tcp_socket("127.0.0.1", 0)
    base = f"http://127.0.0.1:{tcp.getsockname()[1]}"
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(bench(folder, replace(Settings(), upload_max_bytes=2 * MIB)))
        await stack.enter_async_context(serve_in_background(at.service, [tcp]))
        api_keys = at.service.api_keys
        _, secret = await api_keys.create("owner", quota=Quota(upload_bytes=MIB))
        owner = httpx.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {secret}"}, timeout=60)
        anybody = httpx.AsyncClient(timeout=60)
        await stack.enter_async_context(owner)
        await stack.enter_async_context(anybody)
        made = await owner.post("/v1/sandboxes", json={"template": "base", "limits": {"pids": 32768}})
        assert made.status_code == 201, made.text
        yield Open(api_keys, owner, anybody, f"/v1/sandboxes/{made.json()['id']}", base)


async def test_signed_url_gives_access_to_one_file_by_one_method(here: Open) -> None:
    content = os.urandom(100_000)
    written = await here.anybody.put(await here.sign(method="PUT"), content=content)
    assert (written.status_code, written.json()["size_bytes"]) == (200, 100_000)
    got = await here.anybody.get(await here.sign())
    assert got.content == content
    assert (got.headers["x-content-type-options"], got.headers["content-type"]) == ("nosniff", "application/octet-stream")
    part = await here.anybody.get(await here.sign(), headers={"Range": "bytes=2-3"})
    assert (part.status_code, part.content, part.headers["x-content-type-options"]) == (206, content[2:4], "nosniff")
    problem(await here.anybody.get(await here.sign(method="PUT")), 403, "forbidden")
    problem(await here.anybody.put(await here.sign(), content=b"x"), 403, "forbidden")
    for path in (here.url, f"{here.url}/files/content?path=/workspace/a", "/v1/sandboxes", "/v1/signed/files", "/v1/signed/files/content/"):
        query = (await here.sign()).partition("?")[2]
        problem(await here.anybody.get(f"{here.base}{path}{'&' if '?' in path else '?'}{query}"), 401, "unauthenticated")
    problem(await here.anybody.get(f"{here.base}/v1/signed/files/content"), 403, "forbidden")


async def test_signed_url_ends_at_its_expiry_and_with_its_key(here: Open) -> None:
    await here.owner.put(f"{here.url}/files/content", params={"path": "/workspace/a"}, content=b"a")
    short, long = await here.sign(expires_in=1), await here.sign()

    async def over() -> bool:
        return (await here.anybody.get(short)).status_code == 403

    await until(over)
    assert (await here.anybody.get(long)).content == b"a"
    await here.api_keys.revoke("owner")
    assert "revoked" in problem(await here.anybody.get(long), 403, "forbidden")["detail"]


async def test_upload_by_signed_url_obeys_the_quota_of_the_key(here: Open) -> None:
    url = await here.sign(method="PUT")
    problem(await here.anybody.put(url, content=bytes(MIB + 1)), 429, "quota_exceeded")
    assert (await here.owner.get(f"{here.url}/files/exists", params={"path": "/workspace/a"})).json() == {"exists": False}


async def test_what_is_kept_out_of_a_sandbox_has_the_limit_of_an_upload(here: Open) -> None:
    await here.owner.post(f"{here.url}/processes", json={"command": f"head -c {MIB + 1} /dev/zero > a; head -c {MIB} /dev/zero > b"})
    problem(await here.owner.post(f"{here.url}/files/export", json={"path": "/workspace/a"}), 429, "quota_exceeded")
    assert (await here.owner.post(f"{here.url}/files/export", json={"path": "/workspace/b"})).status_code == 201


async def test_what_cannot_be_signed_is_refused(here: Open) -> None:
    for body in ({"path": ""}, {"path": "/a", "method": "DELETE"}, {"path": "/a", "expires_in": 0}, {"path": "/a", "expires_in": 1e9}):
        assert (await here.owner.post(f"{here.url}/files/signed-urls", json=body)).status_code == 400
    problem(await here.owner.post("/v1/sandboxes/sb-abcd-abcdefghijklmnop/files/signed-urls", json={"path": "/a"}), 404, "sandbox_not_found")


def test_the_secret_is_private_and_survives(tmp_path: Path) -> None:
    made = data_dir.secret(tmp_path)
    assert len(made) == 32
    assert (tmp_path / data_dir.SIGNING).stat().st_mode & 0o777 == 0o600
    assert data_dir.secret(tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == [data_dir.SIGNING]
