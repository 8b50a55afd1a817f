"""JavaScript packages through the cache: metadata and tarballs."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.values import Access, Credential, NpmSources, netloc_of
from sandlot.egress.packages.registries.npm_metadata import ACCEPT_SHORT, SHORT_TYPE
from tests.support.packages import Served, served
from tests.support.upstream import Said, Upstream

DATA = b"tarball" * 1000
INTEGRITY = f"sha512-{base64.b64encode(hashlib.sha512(DATA).digest()).decode()}"


def packument(origin: str, name: str, **dist: object) -> Said:
    base = name.rpartition("/")[2]
    whole = {"tarball": f"{origin}/registry/{name}/-/{base}-1.0.0.tgz", "integrity": INTEGRITY, **dist}
    words = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": name, "version": "1.0.0", "dist": whole}}, "readme": "r"}
    return Said(json.dumps(words).encode(), headers={"Content-Type": "application/json"})


@pytest.fixture(autouse=True)
def _packages(registry: Upstream) -> None:
    registry.says["/registry/pkg"] = packument(registry.origin, "pkg")
    registry.says["/registry/@s%2Fpkg"] = packument(registry.origin, "@s/pkg")
    for name in ("pkg", "@s/pkg"):
        registry.says[f"/registry/{name}/-/pkg-1.0.0.tgz"] = Said(DATA)


@pytest.mark.parametrize("path, name", [("/npm/pkg", "pkg"), ("/npm/@s%2fpkg", "@s/pkg"), ("/npm/@s/pkg", "@s/pkg")])
async def test_metadata_and_tarball_of_a_package_are_served(
    client: httpx.AsyncClient, registry: Upstream, cache: Served, path: str, name: str
) -> None:
    response = await client.get(path, headers={"Accept": ACCEPT_SHORT})
    assert response.headers["content-type"] == SHORT_TYPE
    assert "readme" not in response.json()
    tarball = response.json()["versions"]["1.0.0"]["dist"]["tarball"]
    assert tarball == f"{cache.origin}/npm/{name}/-/pkg-1.0.0.tgz"
    for _ in range(2):
        assert (await client.get(tarball)).content == DATA
    assert len(registry.asked) == 2


async def test_full_metadata_is_a_separate_page(client: httpx.AsyncClient) -> None:
    response = await client.get("/npm/pkg")
    assert response.headers["content-type"] == "application/json"
    assert response.json()["readme"] == "r"
    again = await client.get("/npm/pkg", headers={"If-None-Match": response.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("dist", [{"integrity": "sha512-AAAA", "shasum": "b" * 40}, {"shasum": "b" * 40, "integrity": None}])
async def test_file_with_a_wrong_digest_is_cut(client: httpx.AsyncClient, registry: Upstream, cache: Served, dist: dict[str, object]) -> None:
    registry.says["/registry/pkg"] = packument(registry.origin, "pkg", **dist)
    with pytest.raises(httpx.TransportError):
        await client.get("/npm/pkg/-/pkg-1.0.0.tgz")
    assert cache.cache.counters().mismatches == 1


@pytest.mark.parametrize(
    "path",
    [
        "/npm", "/npm/none", "/npm/pkg/-/pkg-2.0.0.tgz", "/npm/pkg/-/x/y", "/npm/-/v1/search?text=x", "/npm/-/all", "/npm/@s", "/npm/pkg/1.0.0/x",
        "/npm/@s%2fpkg/-/none.tgz", "/npm/.pkg",
    ],
)  # fmt: skip
async def test_unknown_path_is_404_with_json(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]


async def test_scope_has_its_own_registry_and_credential(tmp_path: Path, registry: Upstream) -> None:
    registry.says["/mine/@mine%2Fpkg"] = packument(registry.origin, "@mine/pkg", tarball=f"{registry.origin}/mine/file")
    registry.says["/mine/file"] = Said(DATA)
    access = Access(credentials=(Credential("http", netloc_of(registry.origin), "/mine/", "Bearer secret"),))
    sources = PackageSources(npm=NpmSources(registry=f"{registry.origin}/registry/", scopes={"@mine": f"{registry.origin}/mine/"}, access=access))
    async with served(tmp_path / "p", lambda: sources) as cache, cache.client() as client:
        response = await client.get("/npm/@mine%2fpkg")
        assert "secret" not in response.text + str(response.headers)
        assert (await client.get("/npm/@mine/pkg/-/pkg-1.0.0.tgz")).content == DATA
        assert (await client.get("/npm/@s%2fpkg")).status_code == 200
    shown = {each.path: each.headers.get("authorization") for each in registry.asked}
    assert shown == {"/mine/@mine%2Fpkg": "Bearer secret", "/mine/file": "Bearer secret", "/registry/@s%2Fpkg": None}
    kept = b"".join(path.read_bytes() for path in (tmp_path / "p").rglob("*") if path.is_file())
    assert b"secret" not in kept
