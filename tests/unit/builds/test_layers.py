"""Stored layers: named by their digests, complete or not at all, kept as long as they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.builds import layers as module
from sandlot.builds.layers import LayerStore
from sandlot.model.errors import ConflictError
from sandlot.model.images import Layer
from tests.support.service import pieces

CONTENT = b"layer" * 1000
LAYER = Layer(f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", len(CONTENT), "application/vnd.oci.image.layer.v1.tar", f"sha256:{'0' * 64}")


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers")


async def content(store: LayerStore, layer: Layer = LAYER) -> bytes:
    """Return the content of a stored layer."""
    return b"".join([piece async for piece in store.open(layer)])


async def test_layer_is_stored_under_its_digest(store: LayerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 7)
    with store.begin() as writer:
        await writer.write(CONTENT[:10])
        await writer.write(CONTENT[10:])
        assert not store.has(LAYER.digest)
        assert await writer.finish(LAYER.media_type, LAYER.diff_id) == LAYER
    assert store.has(LAYER.digest)
    assert await content(store) == CONTENT


async def test_layer_without_compression_has_one_digest(store: LayerStore) -> None:
    with store.begin() as writer:
        writer.append(CONTENT)
        layer = await writer.finish(LAYER.media_type)
    assert (layer.digest, layer.diff_id, await content(store, layer)) == (LAYER.digest, LAYER.digest, CONTENT)


async def test_known_layer_is_read_once(store: LayerStore) -> None:
    await store.put(LAYER, pieces(CONTENT))
    await store.put(LAYER, _never())
    assert await content(store) == CONTENT


async def test_wrong_bytes_are_refused_and_leave_nothing(store: LayerStore, tmp_path: Path) -> None:
    with pytest.raises(ConflictError, match="other content"):
        await store.put(LAYER, pieces(b"other"))
    assert list((tmp_path / "layers").iterdir()) == []


async def test_interrupted_write_leaves_nothing(store: LayerStore, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cut"):
        await store.put(LAYER, _cut())
    assert list((tmp_path / "layers").iterdir()) == []


async def test_missing_layer_says_what_to_do(store: LayerStore) -> None:
    for layer in (LAYER, replace(LAYER, digest="sha256:../../etc/passwd")):
        with pytest.raises(ConflictError) as missing:
            await content(store, layer)
        assert missing.value.hint == "Build the template again."


async def test_prune_keeps_needed_layers_and_open_writers(store: LayerStore, tmp_path: Path) -> None:
    assert await store.prune(()) == 0
    await store.put(LAYER, pieces(CONTENT))
    (tmp_path / "layers/part-of-a-killed-service").write_bytes(b"x")
    with store.begin() as writer:
        assert await store.prune({LAYER.digest}) == 1
        await writer.write(b"more")
        await writer.finish(LAYER.media_type, LAYER.diff_id)
    assert await store.prune({LAYER.digest}) == 1
    assert store.has(LAYER.digest)
    assert await store.prune(()) == 1


async def _never() -> AsyncIterator[bytes]:
    for _ in range(1):
        yield pytest.fail("the layer was read again")


async def _cut() -> AsyncIterator[bytes]:
    yield CONTENT[:5]
    raise OSError("cut")
