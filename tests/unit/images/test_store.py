"""The image store without builds: names, keys, and errors about missing templates."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sandlot.host.free_space import FreeSpace
from sandlot.images import store as stores
from sandlot.images.build_cache import BuildCache
from sandlot.images.recipe import Debian, Recipe
from sandlot.images.store import ImageStore
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.specs import RootFs


def test_lookup_creates_no_file(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "cache", {"tiny": Recipe("tiny", debian=Debian("bookworm"))})
    assert store.names() == ["tiny"]
    assert store.find("tiny") is None
    assert store.find_current_root("tiny") is None
    assert store.find_current_root_image("tiny") is None
    assert store.list() == []
    assert store.prune() == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("verb", ["ensure", "root", "root_image", "find", "find_current_root", "find_current_root_image"])
def test_unknown_template_is_refused_without_side_effects(tmp_path: Path, verb: str) -> None:
    store = ImageStore(tmp_path / "cache")
    with pytest.raises(NotFoundError, match=r"Use one of these templates: agent, base, .*code-interpreter") as caught:
        getattr(store, verb)("nope")
    assert caught.value.code is ErrorCode.TEMPLATE_NOT_FOUND
    assert not (tmp_path / "cache").exists()


def test_prune_keeps_named_roots_without_a_recipe(tmp_path: Path) -> None:
    digest = "a" * 64
    BuildCache(tmp_path, "roots", FreeSpace(tmp_path)).ensure(digest, lambda folder, _lock: (folder / "tree").mkdir(), lambda: None)
    image = "b" * 64
    BuildCache(tmp_path, "root-images", FreeSpace(tmp_path)).ensure(image, lambda folder, _lock: (folder / "root.erofs").touch(), lambda: None)
    store, into = ImageStore(tmp_path, {}), tmp_path / "root-images" / image

    assert store.prune(keep=[digest, image]) == 0
    assert store.find_root(digest) == RootFs(digest, tmp_path / "roots" / digest / "tree")
    (into / "manifest.json").write_text('{"size_bytes": 1}')
    assert store.find_root(image) == RootFs(image, image=into / "root.erofs", index=into / "root.index")

    assert store.prune() == 2
    assert store.find_root(digest) is None
    assert store.find_root(image) is None


def test_images_are_evicted_by_their_last_use_and_only_if_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(key: str, used_s: float) -> None:
        def fill(folder: Path, _lock: int) -> None:
            (folder / "manifest.json").write_text('{"size_bytes": 4}')
            os.utime(folder / "manifest.json", (used_s, used_s))

        BuildCache(tmp_path, "root-images", FreeSpace(tmp_path)).ensure(key * 64, fill, lambda: None)

    now_s = time.time()
    for key, used_s in (("a", now_s - 3000), ("b", now_s - 2000), ("c", now_s - 1000), ("d", now_s)):
        add(key, used_s)
    store = ImageStore(tmp_path, {})
    assert store.find_root("a" * 64) is not None, "a use"
    for most_bytes, left in ((16, "abcd"), (15, "acd"), (0, "ad")):
        monkeypatch.setattr(stores, "MAX_ROOT_IMAGE_BYTES", most_bytes)
        store._evict_root_images()  # noqa: SLF001 - called when an image was made
        assert sorted(folder.name[0] for folder in (tmp_path / "root-images").iterdir()) == list(left)
    assert store.restore_root_image("b" * 64) is None, "nothing is left to make it from"
