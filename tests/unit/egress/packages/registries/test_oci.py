"""The distribution API inside sandboxes: read-only, through the cache, only for registries that the operator has named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.oci import parse_registries, parse_sources
from sandlot.model.image_manifests import OCI_INDEX, OCI_MANIFEST
from tests.support.oci import digest_of, serve_image, two_layers
from tests.support.packages import Served, served
from tests.support.upstream import Said, Upstream


@pytest.fixture
async def cache(tmp_path: Path, registry: Upstream) -> AsyncIterator[Served]:
    sources = parse_sources(parse_registries([registry.origin, f"mirrored.example={registry.origin}"]), [])
    async with served(tmp_path / "packages", lambda: PackageSources(oci=sources)) as found:
        yield found


@pytest.fixture
def base(registry: Upstream) -> str:
    """Path of the repository in the cache. References have no second port, so the port follows an underscore."""
    return f"/v2/{registry.origin.partition('://')[2].replace(':', '_')}/team/app"


async def test_version_of_the_api_is_served(client: httpx.AsyncClient) -> None:
    response = await client.get("/v2/")
    assert (response.status_code, response.headers["docker-distribution-api-version"]) == (200, "registry/2.0")


@pytest.mark.parametrize("form", ["path", "path with a mirror", "query"])
async def test_image_is_pulled(client: httpx.AsyncClient, registry: Upstream, base: str, form: str) -> None:
    made = two_layers()
    serve_image(registry, made)
    registry.says["/v2/team/app/manifests/1"] = Said(made.index())
    base, query = {
        "path": (base, ""),
        "path with a mirror": ("/v2/mirrored.example/team/app", ""),
        "query": ("/v2/team/app", "?ns=mirrored.example"),
    }[form]
    index = await client.get(f"{base}/manifests/1{query}")
    assert (index.content, index.headers["content-type"]) == (made.index(), OCI_INDEX)
    manifest = await client.get(f"{base}/manifests/{digest_of(made.manifest)}{query}")
    assert (manifest.content, manifest.headers["content-type"]) == (made.manifest, OCI_MANIFEST)
    assert manifest.headers["docker-content-digest"] == digest_of(made.manifest)
    for digest, data in made.blobs.items():
        blob = await client.get(f"{base}/blobs/{digest}{query}")
        assert (blob.content, blob.headers["docker-content-digest"]) == (data, digest)


async def test_clients_may_ask_for_heads_and_ranges(client: httpx.AsyncClient, registry: Upstream, base: str) -> None:
    made = two_layers()
    serve_image(registry, made)
    head = await client.head(f"{base}/manifests/1")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(made.manifest)), b"")
    digest = digest_of(made.layers[0])
    part = await client.get(f"{base}/blobs/{digest}", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, made.layers[0][10:20])


@pytest.mark.parametrize(
    "path, status",
    [
        ("docker.io/library/python/manifests/3.12", 403),
        ("library/python/manifests/3.12?ns=docker.io", 403),
        ("mirrored.example/team/app/manifests/none", 404),
        (f"mirrored.example/team/app/blobs/{digest_of(b'')}", 404),
        ("mirrored.example/team/app/tags/list", 404),
        ("mirrored.example/team/app/manifests/a%20b", 400),
        ("mirrored.example/TEAM/manifests/1", 404),
        ("mirrored.example/manifests/1", 404),
        ("manifests/1", 404),
        ("_catalog", 404),
        ("team/app/manifests/1?ns=http://mirrored.example", 404),
    ],
)
async def test_other_requests_are_refused(client: httpx.AsyncClient, path: str, status: int) -> None:
    response = await client.get(f"/v2/{path}")
    assert response.status_code == status
    if status != 400:
        assert response.json()["errors"][0]["message"]


async def test_image_cannot_be_pushed(client: httpx.AsyncClient, base: str) -> None:
    assert (await client.post(f"{base}/blobs/uploads/")).status_code == 405


async def test_sandbox_without_packages_gets_no_image(client: httpx.AsyncClient, cache: Served, registry: Upstream, base: str) -> None:
    serve_image(registry, two_layers())
    cache.allowed = False
    assert (await client.get(f"{base}/manifests/1")).status_code == 403
    assert registry.asked == []


async def test_wrong_layer_is_cut_off_and_names_no_upstream(client: httpx.AsyncClient, registry: Upstream, base: str) -> None:
    made = two_layers()
    serve_image(registry, made)
    digest = digest_of(made.layers[0])
    registry.says[f"/v2/team/app/blobs/{digest}"] = Said(made.layers[0][:-1] + b"x")
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get(f"{base}/blobs/{digest}")
    registry.says["/v2/team/app/manifests/1"] = Said(status=500)
    response = await client.get("/v2/mirrored.example/team/app/manifests/1")
    assert (response.status_code, registry.origin.rpartition(":")[2] in response.text) == (502, False)
