"""Images of a real registry: the package cache pulls what a client has pushed, by tag and by digest, also through a mirror's prefix."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.oci import parse_registries, parse_sources
from sandlot.model.image_manifests import OCI_INDEX, OCI_MANIFEST
from sandlot.model.images import ImageReference, parse_reference
from tests.support.http import NO_TLS
from tests.support.oci import MadeImage, digest_of, tar_of, two_layers
from tests.support.packages import Served, served
from tests.support.until import until

REGISTRY = Path(sysconfig.get_path("scripts")) / "docker-registry"
CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}", net: tcp}}
"""


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[str]:
    """Origin of a docker-registry."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "registry.yml"
    config.write_text(CONFIG.format(folder=tmp_path, port=port), encoding="ascii")
    process = await asyncio.create_subprocess_exec(REGISTRY, "serve", config, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    origin = f"http://127.0.0.1:{port}"

    async def is_up() -> bool:
        assert process.returncode is None, "the registry has ended"
        try:
            async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
                return (await client.get(f"{origin}/v2/")).status_code == 200
        except httpx.TransportError:
            return False

    try:
        await until(is_up)
        yield origin
    finally:
        process.kill()
        await process.wait()


async def push(origin: str, made: MadeImage, repository: str, tag: str) -> None:
    """Push an image of this platform, and an index that names it."""
    async with httpx.AsyncClient(base_url=f"{origin}/v2/{repository}", trust_env=False, verify=NO_TLS) as client:
        for digest, data in made.blobs.items():
            where = (await client.post("/blobs/uploads/")).headers["location"]
            (await client.put(where, params={**httpx.URL(where).params, "digest": digest}, content=data)).raise_for_status()
        manifest = await client.put(f"/manifests/{digest_of(made.manifest)}", content=made.manifest, headers={"Content-Type": OCI_MANIFEST})
        manifest.raise_for_status()
        (await client.put(f"/manifests/{tag}", content=made.index(only=True), headers={"Content-Type": OCI_INDEX})).raise_for_status()


async def pull(cache: Served, reference: ImageReference, made: MadeImage) -> None:
    image = await cache.cache.resolve(reference)
    assert image.digest == digest_of(made.manifest)
    layers = [b"".join([piece async for piece in cache.cache.read_layer(reference, layer)]) for layer in image.layers]
    assert layers == made.layers


async def test_image_of_two_layers_is_pulled_and_cached(origin: str, tmp_path: Path) -> None:
    made, moved = two_layers(1_000_000), MadeImage([tar_of({"new": b"1"})])
    await push(origin, made, "hub/library/python", "3.12")
    sources = parse_sources(parse_registries([origin, f"docker.io={origin}/hub"]), [])
    async with served(tmp_path / "packages", lambda: PackageSources(oci=sources), ttl_s=0.0) as cache:
        by_mirror = parse_reference("python:3.12")
        await pull(cache, by_mirror, made)
        asked = cache.cache.counters().upstream_requests
        await pull(cache, parse_reference(f"python@{digest_of(made.manifest)}"), made)
        assert cache.cache.counters().upstream_requests == asked
        await pull(cache, parse_reference(f"{origin.partition('://')[2]}/hub/library/python:3.12"), made)
        await push(origin, moved, "hub/library/python", "3.12")
        await pull(cache, by_mirror, moved)
