"""Python's packages through the cache: pages, files and their metadata."""

from __future__ import annotations

import hashlib
import json

import httpx
import pytest

from tests.support.upstream import Said, Upstream

WHEEL, METADATA = b"wheel" * 1000, b"Metadata-Version: 2.1\n"
NAME = "Pkg_Name-1.0-py3-none-any.whl"
JSON = "application/vnd.pypi.simple.v1+json"
HTML = "application/vnd.pypi.simple.v1+html"
SHA, SHA_METADATA = (hashlib.sha256(data).hexdigest() for data in (WHEEL, METADATA))
FILE = f"/pypi/files/pkg-name/sha256-{SHA}/sha256-{SHA_METADATA}/{NAME}"


@pytest.fixture(autouse=True)
def _project(registry: Upstream) -> None:
    files = [
        {"filename": NAME, "url": f"/f/{NAME}", "hashes": {"sha256": SHA}, "core-metadata": {"sha256": SHA_METADATA}, "yanked": "bad"},
        {"filename": "pkg-name-0.9.tar.gz", "url": "/f/old", "hashes": {}, "core-metadata": True},
    ]
    registry.says["/simple/pkg-name/"] = Said(json.dumps({"files": files}).encode(), headers={"Content-Type": JSON})
    registry.says[f"/f/{NAME}"] = Said(WHEEL)
    registry.says[f"/f/{NAME}.metadata"] = Said(METADATA)
    registry.says["/f/old.metadata"] = Said(METADATA)


@pytest.mark.parametrize(
    "accept, expected",
    [
        (None, "text/html; charset=utf-8"),
        (JSON, JSON),
        (HTML, HTML),
        (f"{JSON}, {HTML}; q=0.1, text/html; q=0.01", JSON),
    ],
)
async def test_page_has_the_accepted_media_type(client: httpx.AsyncClient, accept: str | None, expected: str) -> None:
    response = await client.get("/pypi/simple/pkg-name/", headers={"Accept": accept} if accept else {})
    assert (response.headers["content-type"], response.headers["vary"]) == (expected, "Accept")
    assert ("<a href" in response.text) is ("html" in expected)


@pytest.mark.parametrize("path", ["/pypi/simple/Pkg_Name/", "/pypi/simple/pkg.name", "/pypi/simple/pkg-name"])
async def test_other_spelling_of_a_name_is_redirected(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.headers["location"]) == (301, "/pypi/simple/pkg-name/")
    assert (await client.get(path, follow_redirects=True)).status_code == 200


async def test_every_link_of_a_page_leads_to_its_file(client: httpx.AsyncClient, registry: Upstream) -> None:
    page = await client.get("/pypi/simple/pkg-name/", headers={"Accept": JSON})
    link = page.json()["files"][0]["url"]
    assert str(page.url.join(link)).endswith(FILE)
    assert (await client.get(page.url.join(link))).content == WHEEL
    assert registry.origin not in page.text


async def test_metadata_is_verified_and_stored_like_a_file(client: httpx.AsyncClient, registry: Upstream) -> None:
    for _ in range(2):
        assert (await client.get(f"{FILE}.metadata")).content == METADATA
    assert registry.paths == ["/simple/pkg-name/", f"/f/{NAME}.metadata"]
    assert (await client.get("/pypi/files/pkg-name/unknown/unknown/pkg-name-0.9.tar.gz.metadata")).content == METADATA


@pytest.mark.parametrize(
    "path",
    [
        "/pypi", "/pypi/", "/pypi/simple", "/pypi/simple/", "/pypi/x", "/pypi/simple/a/b", "/pypi/files", "/pypi/files/a/b/c",
        f"/pypi/files/pkg-name/sha256-{SHA}/unknown/none.whl", f"/pypi/files/pkg-name/sha256-{SHA_METADATA}/unknown/{NAME}",
        f"/pypi/files/pkg-name/md5-{'a' * 32}/unknown/{NAME}", f"/pypi/files/pkg-name/unknown/unknown/{NAME}", f"{FILE}.metadata.metadata",
        f"{FILE}/",
        f"/pypi/files/other/sha256-{SHA}/unknown/{NAME}", f"/pypi/files/pkg-name/unknown/sha256-{SHA}/pkg-name-0.9.tar.gz.metadata",
        "/pypi/simple/-bad-/", "/pypi/simple/..x/",
    ],
)  # fmt: skip
async def test_unknown_path_is_404(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"].startswith("text/plain")


async def test_file_that_is_missing_in_the_stored_page_is_looked_up_in_a_fresh_one(client: httpx.AsyncClient, registry: Upstream) -> None:
    await client.get("/pypi/simple/pkg-name/")
    other = hashlib.sha256(b"other").hexdigest()
    assert (await client.get(f"/pypi/files/pkg-name/sha256-{other}/unknown/{NAME}")).status_code == 404
    assert registry.paths == ["/simple/pkg-name/"]
