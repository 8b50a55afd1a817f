"""The image store without builds: names, keys, and errors about missing templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.host.free_space import FreeSpace
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
    with pytest.raises(NotFoundError, match=r"Use one of these templates: base, code-interpreter") as caught:
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
    assert store.find_root(image) == RootFs(image, image=into / "root.erofs", index=into / "root.index")

    assert store.prune() == 2
    assert store.find_root(digest) is None
    assert store.find_root(image) is None
