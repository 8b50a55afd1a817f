"""Images of a real registry: the package cache pulls what a client has pushed, by tag and by digest, also through a mirror's prefix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.oci import parse_registries, parse_sources
from sandlot.model.images import ImageReference, parse_reference
from tests.support.docker_registry import docker_registry, push
from tests.support.oci import MadeImage, digest_of, tar_of, two_layers
from tests.support.packages import Served, served


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[str]:
    """Origin of a docker-registry."""
    async with docker_registry(tmp_path) as running:
        yield running


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
