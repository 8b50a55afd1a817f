"""Images of registries: resolved, verified, cached by digest, and refused with an error that names the image and the layer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.oci import parse_registries, parse_sources
from sandlot.egress.packages.registries import oci_images
from sandlot.egress.policy.addresses import Network
from sandlot.model import image_manifests
from sandlot.model.errors import ErrorCode, ForbiddenError, InvalidRequestError, NotFoundError, SandlotError, UnavailableError
from sandlot.model.image_manifests import OCI_INDEX, TAR_GZIP
from sandlot.model.images import Image, ImageReference, Layer, parse_reference
from tests.support.oci import MadeImage, digest_of, serve_image, tar_of, two_layers
from tests.support.packages import MIB, Served, served
from tests.support.until import until
from tests.support.upstream import Asked, Said, Upstream, upstream

LOOPBACK = (ip_network("127.0.0.1/32"),)
Opening = Callable[..., AbstractAsyncContextManager[Served]]


def host_of(registry: Upstream) -> str:
    return registry.origin.partition("://")[2]


@pytest.fixture
def opening(tmp_path: Path, registry: Upstream) -> Opening:
    """Open a cache that knows the registry of the test."""

    @asynccontextmanager
    async def open_cache(
        *logins: str, registries: tuple[str, ...] = (), max_bytes: int = 512 * MIB, ttl_s: float = 600.0, private: Collection[Network] = ()
    ) -> AsyncIterator[Served]:
        sources = parse_sources(parse_registries(registries or (registry.origin,)), logins)
        folder = tmp_path / "packages"
        async with served(folder, lambda: PackageSources(oci=sources), max_bytes=max_bytes, ttl_s=ttl_s, private=private) as found:
            yield found

    return open_cache


@pytest.fixture
async def cache(opening: Opening) -> AsyncIterator[Served]:
    async with opening() as found:
        yield found


@pytest.fixture
def reference(registry: Upstream) -> ImageReference:
    return parse_reference(f"{host_of(registry)}/team/app:1")


async def read(cache: Served, reference: ImageReference, layer: Layer) -> bytes:
    return b"".join([piece async for piece in cache.cache.read_layer(reference, layer)])


async def refusal(cache: Served, reference: ImageReference) -> SandlotError:
    """Return the error of resolving an image and reading its layers."""

    async def pull() -> None:
        image = await cache.cache.resolve(reference)
        for layer in image.layers:
            await read(cache, reference, layer)

    with pytest.raises(SandlotError) as caught:
        await pull()
    return caught.value


def stored(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "packages/files").rglob("*") if path.is_file())


async def test_image_is_resolved_and_its_layers_are_read(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers()
    serve_image(registry, made)
    image = await cache.cache.resolve(reference)
    assert image.digest == digest_of(made.manifest)
    assert (image.config.env, image.config.user, image.config.cmd) == ({"PATH": "/bin", "A": "b=c"}, "1000", ("sh",))
    assert image.layers == tuple(
        Layer(digest_of(layer), len(layer), TAR_GZIP, digest_of(archive)) for layer, archive in zip(made.layers, made.archives, strict=True)
    )
    assert [await read(cache, reference, layer) for layer in image.layers] == made.layers


async def test_index_leads_to_the_platform_of_this_machine(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers()
    serve_image(registry, made)
    registry.says["/v2/team/app/manifests/1"] = Said(made.index())
    assert (await cache.cache.resolve(reference)).digest == digest_of(made.manifest)


async def test_second_pull_asks_the_registry_for_nothing(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    serve_image(registry, two_layers())
    for _ in range(2):
        image = await cache.cache.resolve(reference)
        for layer in image.layers:
            await read(cache, reference, layer)
    assert len(registry.paths) == 4


async def test_digest_is_never_asked_for_again_after_a_restart(opening: Opening, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers()
    serve_image(registry, made)
    pinned = ImageReference(reference.registry, reference.repository, "", digest_of(made.manifest))
    async with opening() as cache:
        await cache.cache.resolve(pinned)
    registry.says.clear()
    async with opening() as cache:
        assert (await cache.cache.resolve(pinned)).digest == digest_of(made.manifest)


async def test_expired_tag_is_asked_for_again_and_may_have_moved(opening: Opening, registry: Upstream, reference: ImageReference) -> None:
    old, new = two_layers(), MadeImage([tar_of({"new": b"1"})])
    serve_image(registry, old)
    async with opening(ttl_s=0.0) as cache:
        first = await cache.cache.resolve(reference)
        registry.says["/v2/team/app/manifests/1"] = lambda asked: Said(status=304 if asked.headers.get("if-none-match") else 200)
        assert await cache.cache.resolve(reference) == first
        serve_image(registry, new)
        assert (await cache.cache.resolve(reference)).digest == digest_of(new.manifest)


async def test_layer_continues_after_a_broken_connection(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers(MIB)
    serve_image(registry, made)
    layer = made.layers[0]
    asked_for = []

    def say(asked: Asked) -> Said:
        start = int(asked.headers.get("range", "bytes=0-")[6:-1])
        asked_for.append(start)
        part = layer[start:]
        headers = {"Content-Range": f"bytes {start}-{len(layer) - 1}/{len(layer)}"}
        return Said(part, 206, headers) if start else Said(part, cut_at=len(layer) // 2)

    registry.says[f"/v2/team/app/blobs/{digest_of(layer)}"] = say
    image = await cache.cache.resolve(reference)
    assert await read(cache, reference, image.layers[0]) == layer
    assert asked_for[0] == 0 < asked_for[1]


async def test_registry_that_is_not_named_is_refused(opening: Opening, registry: Upstream) -> None:
    other = parse_reference("docker.io/library/python:3.12")
    async with opening() as cache:
        error = await refusal(cache, other)
        assert (error.code, host_of(registry) in error.message, "SANDLOT_REGISTRIES" in error.hint) == (ErrorCode.FORBIDDEN, True, True)
        with pytest.raises(ForbiddenError):
            await read(cache, other, Layer(digest_of(b""), 0, TAR_GZIP, digest_of(b"")))
    assert registry.asked == []


async def test_mirror_serves_the_images_of_another_registry(opening: Opening, registry: Upstream) -> None:
    made = two_layers()
    serve_image(registry, made, "hub/library/python", "3.12")
    async with opening(registries=(f"docker.io={registry.origin}/hub",)) as cache:
        assert (await cache.cache.resolve(parse_reference("python:3.12"))).digest == digest_of(made.manifest)


@pytest.mark.parametrize(
    "change, text",
    [
        ({"schemaVersion": 1}, "schema version 1"),
        ({"layers": [{"mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"}]}, "layer 1 has the media type"),
        ({"layers": [{"mediaType": TAR_GZIP, "digest": "sha512:00", "size": 1}]}, "layer 1 has no SHA-256 digest"),
        ({"layers": [{"mediaType": TAR_GZIP, "digest": digest_of(b"1"), "size": -1}]}, f"layer 1 ({digest_of(b'1')}) has the size -1"),
        ({"layers": [{"mediaType": TAR_GZIP, "digest": digest_of(b"1"), "size": 1}] * 128}, "128 layers, and 127"),
        ({"layers": []}, "0 layers, and its configuration 2"),
        ({"manifests": []}, "neither an index nor the manifest"),
        ({"mediaType": OCI_INDEX}, "which its content is not"),
        ({"config": None}, "no configuration"),
        ({"layers": {}}, "`layers` is not a list"),
    ],
)
async def test_invalid_manifest_is_refused(
    cache: Served, registry: Upstream, reference: ImageReference, change: Mapping[str, Any], text: str
) -> None:
    made = two_layers()
    serve_image(registry, MadeImage(made.archives, more=change))
    error = await refusal(cache, reference)
    assert (type(error), str(reference) in error.message, text in error.message) == (InvalidRequestError, True, True), error.message


@pytest.mark.parametrize(
    "change, text",
    [
        ({"rootfs": {"diff_ids": [digest_of(b"")]}}, "2 layers, and its configuration 1"),
        ({"rootfs": {"diff_ids": ["md5:1", digest_of(b"")]}}, "for layer 1"),
        ({"rootfs": None}, "`rootfs.diff_ids`"),
        ({"config": {"Env": "A=b"}}, "`Env`"),
        ({"config": {"User": 5}}, "`User`"),
        ({"config": {"Cmd": ["a\0b"]}}, "`Cmd`"),
    ],
)
async def test_invalid_configuration_is_refused(
    cache: Served, registry: Upstream, reference: ImageReference, change: Mapping[str, Any], text: str
) -> None:
    serve_image(registry, MadeImage(two_layers().archives, config_more=change))
    error = await refusal(cache, reference)
    assert (type(error), text in error.message) == (InvalidRequestError, True), error.message


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"schemaVersion":2,' + b"[" * 100_000])
async def test_manifest_that_is_no_json_object_is_refused(cache: Served, registry: Upstream, reference: ImageReference, body: bytes) -> None:
    registry.says["/v2/team/app/manifests/1"] = Said(body)
    assert "JSON" in (await refusal(cache, reference)).message


@pytest.mark.parametrize("chunked", [False, True])
async def test_manifest_above_the_limit_is_refused(
    cache: Served, registry: Upstream, reference: ImageReference, monkeypatch: pytest.MonkeyPatch, *, chunked: bool
) -> None:
    monkeypatch.setattr(oci_images, "MAX_DOCUMENT_BYTES", 1000)
    registry.says["/v2/team/app/manifests/1"] = Said(b" " * 2000, chunked=chunked)
    assert str(image_manifests.MAX_DOCUMENT_BYTES) in (await refusal(cache, reference)).message


async def test_index_without_this_platform_is_refused(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    registry.says["/v2/team/app/manifests/1"] = Said(two_layers().index("mips"))
    error = await refusal(cache, reference)
    assert (type(error), "linux/s390x" in error.message) == (NotFoundError, True)


async def test_image_of_another_platform_is_refused(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    serve_image(registry, MadeImage(two_layers().archives, config_more={"architecture": "mips"}))
    assert "linux/mips" in (await refusal(cache, reference)).message


@pytest.mark.parametrize("version", ["digest", "index"])
async def test_other_manifest_than_the_digest_is_refused(cache: Served, registry: Upstream, reference: ImageReference, version: str) -> None:
    made, other = two_layers(), MadeImage([tar_of({"evil": b""})])
    serve_image(registry, made)
    registry.says[f"/v2/team/app/manifests/{digest_of(made.manifest)}"] = Said(other.manifest)
    registry.says["/v2/team/app/manifests/1"] = Said(made.index())
    wanted = ImageReference(reference.registry, "team/app", "", digest_of(made.manifest)) if version == "digest" else reference
    assert "another manifest" in (await refusal(cache, wanted)).message


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda data: Said(data[:-1] + b"x"), "does not match its digest"),
        (lambda data: Said(data[:-1]), "bytes instead of"),
        (lambda data: Said(data + b"x"), "bytes instead of"),
        (lambda data: Said(data[:-1], chunked=True), "bytes instead of"),
        (lambda data: Said(data + data, chunked=True), "bytes instead of"),
        (lambda _: Said(status=404), "does not have layer"),
        (lambda _: Said(status=429), "status 429"),
        (lambda _: Said(status=500), "status 500"),
        (lambda data: Said(data, cut_at=10), "connection broke"),
        (lambda _: Said(status=302, headers={"Location": "http://169.254.169.254/latest"}), "not public"),
        (lambda _: Said(status=302, headers={"Location": "http://10.0.0.1/blob"}), "not public"),
        (lambda _: Said(status=302, headers={"Location": "http://[::1]:80/blob"}), "not public"),
        (lambda _: Said(status=302, headers={"Location": "http://127.0.0.1:9/blob"}), "not public"),
        (lambda _: Said(status=302, headers={"Location": "file:///etc/passwd"}), "redirect"),
    ],
    ids=[
        "wrong digest",
        "short",
        "long",
        "short without length",
        "long without length",
        "missing",
        "429",
        "500",
        "broken",
        "metadata address",
        "private address",
        "IPv6 loopback",
        "loopback",
        "file",
    ],
)
async def test_bad_layer_is_refused_by_name_and_not_stored(
    cache: Served, registry: Upstream, reference: ImageReference, tmp_path: Path, change: Callable[[bytes], Said], text: str
) -> None:
    made = two_layers()
    serve_image(registry, made)
    bad = digest_of(made.layers[0])
    registry.says[f"/v2/team/app/blobs/{bad}"] = change(made.layers[0])
    error = await refusal(cache, reference)
    assert (text in error.message, bad in error.message, str(reference) in error.message) == (True, True, True), error.message
    assert bad.replace(":", "-") not in stored(tmp_path)
    await until(lambda: not list((tmp_path / "packages/tmp").iterdir()))  # the configuration may still be on its way to the disk


async def test_layer_with_another_size_than_the_manifest_says_is_refused(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers()
    layers = [{**layer, "size": layer["size"] - 1} for layer in made.descriptors]
    serve_image(registry, MadeImage(made.archives, more={"layers": layers}))
    assert "bytes instead of" in (await refusal(cache, reference)).message
    # The layer may be in the store already, from an image that names its size.
    registry.says["/v2/team/app/manifests/2"] = Said(made.manifest)
    right = await cache.cache.resolve(parse_reference(f"{reference.registry}/team/app:2"))
    await read(cache, reference, right.layers[0])
    assert "bytes instead of" in (await refusal(cache, reference)).message


async def test_registry_that_never_responds_is_given_up(
    opening: Opening, registry: Upstream, reference: ImageReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci_images, "DOCUMENT_S", 0.05)
    registry.says["/v2/team/app/manifests/1"] = Said(b"x" * 100, hold_at=50)
    async with opening() as cache:
        error = await refusal(cache, reference)
    assert (type(error), "fast enough" in error.message) == (UnavailableError, True)


async def test_layer_that_never_ends_is_given_up(
    opening: Opening, registry: Upstream, reference: ImageReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oci_images, "PACE_WINDOW_S", 0.05)
    made = two_layers()
    serve_image(registry, made)
    registry.says[f"/v2/team/app/blobs/{digest_of(made.layers[0])}"] = Said(made.layers[0], hold_at=50)
    async with opening() as cache:
        error = await refusal(cache, reference)
    assert (type(error), digest_of(made.layers[0]) in error.message) == (UnavailableError, True)


async def test_layers_that_do_not_fit_in_the_store_are_verified_all_the_same(opening: Opening, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers(MIB)
    serve_image(registry, made)
    async with opening(max_bytes=300_000) as cache:
        image = await cache.cache.resolve(reference)
        assert await read(cache, reference, image.layers[0]) == made.layers[0]
        registry.says[f"/v2/team/app/blobs/{digest_of(made.layers[0])}"] = Said(made.layers[0][:-1] + b"x")
        assert "does not match" in (await refusal(cache, reference)).message


async def test_redirect_to_an_allowed_host_is_followed_without_the_token(opening: Opening, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers()
    serve_image(registry, made)
    login = json.dumps({"auths": {host_of(registry): {"auth": "dTpw"}}})
    async with upstream() as storage, opening(login, private=LOOPBACK) as cache:

        def redirect(asked: Asked) -> Said:
            if asked.headers.get("authorization") != "Basic dTpw":
                return Said(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
            return Said(status=307, headers={"Location": f"{storage.origin}/{asked.path.rpartition('/')[2]}"})

        for digest, data in made.blobs.items():
            storage.says[f"/{digest}"] = Said(data)
            registry.says[f"/v2/team/app/blobs/{digest}"] = redirect
        image = await cache.cache.resolve(reference)
        assert [await read(cache, reference, layer) for layer in image.layers] == made.layers
        assert [each.headers.get("authorization") for each in storage.asked] == [None] * 3
        assert {each.headers["host"] for each in storage.asked} == {host_of(storage)}


def _tokens(registry: Upstream, realm: str, made: MadeImage) -> None:
    serve_image(registry, made)
    says = dict(registry.says)

    def guarded(asked: Asked) -> Said:
        found = says[asked.path]
        assert isinstance(found, Said)
        if asked.headers.get("authorization") == "Bearer secret":
            return found
        challenge = f'Bearer realm="{realm}",service="the registry",scope="repository:team/app:pull"'
        return Said(status=401, headers={"WWW-Authenticate": challenge})

    for path in says:
        registry.says[path] = guarded


@pytest.mark.parametrize("login", [True, False])
async def test_token_is_fetched_once_with_the_login_of_the_registry(
    opening: Opening, registry: Upstream, reference: ImageReference, *, login: bool
) -> None:
    made = two_layers()
    _tokens(registry, f"{registry.origin}/token", made)
    path = "/token?service=the+registry&scope=repository%3Ateam%2Fapp%3Apull"
    registry.says[path] = Said(b'{"token": "secret", "expires_in": 300}')
    logins = [json.dumps({"auths": {host_of(registry): {"auth": "dTpw"}, "other.example": {"auth": "eDp5"}}})] if login else []
    async with opening(*logins) as cache:
        image = await cache.cache.resolve(reference)
        await read(cache, reference, image.layers[0])
    asked = [each.headers.get("authorization") for each in registry.asked if each.path == path]
    assert asked == ["Basic dTpw" if login else None]


async def test_login_is_not_sent_to_a_token_server_without_tls(opening: Opening, registry: Upstream, reference: ImageReference) -> None:
    login = json.dumps({"auths": {host_of(registry): {"auth": "dTpw"}}})
    async with upstream() as issuer, opening(login, private=LOOPBACK) as cache:
        _tokens(registry, f"{issuer.origin}/token", two_layers())
        issuer.says["/token?service=the+registry&scope=repository%3Ateam%2Fapp%3Apull"] = Said(b'{"access_token": "secret"}')
        await cache.cache.resolve(reference)
        assert [each.headers.get("authorization") for each in issuer.asked] == [None]


@pytest.mark.parametrize(
    "realm, text",
    [
        ("http://127.0.0.1:9/token", "not public"),
        ("http://10.1.1.1/token", "not public"),
        ("file:///etc/passwd", "token server"),
        ("", "token server"),
    ],
)
async def test_token_server_with_a_private_address_is_refused(
    cache: Served, registry: Upstream, reference: ImageReference, realm: str, text: str
) -> None:
    _tokens(registry, realm, two_layers())
    assert text in (await refusal(cache, reference)).message


@pytest.mark.parametrize("body", [b"{}", b"[", b'{"token": "a\\nb"}', b'{"token": 5}', b" " * 100_000])
async def test_invalid_token_is_refused(cache: Served, registry: Upstream, reference: ImageReference, body: bytes) -> None:
    _tokens(registry, f"{registry.origin}/token", two_layers())
    registry.says["/token?service=the+registry&scope=repository%3Ateam%2Fapp%3Apull"] = Said(body)
    assert "no valid token" in (await refusal(cache, reference)).message


async def test_refused_login_is_reported_as_a_missing_image(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    registry.says["/v2/team/app/manifests/1"] = Said(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})
    error = await refusal(cache, reference)
    assert (type(error), "401" in error.message, "docker login" in error.hint) == (NotFoundError, True, True)


async def test_many_builds_share_one_download(cache: Served, registry: Upstream, reference: ImageReference) -> None:
    made = two_layers(MIB)
    serve_image(registry, made)
    image: Image = await cache.cache.resolve(reference)
    found = await asyncio.gather(*(read(cache, reference, image.layers[0]) for _ in range(8)))
    assert found == [made.layers[0]] * 8
    assert registry.paths.count(f"/v2/team/app/blobs/{image.layers[0].digest}") == 1
