"""The image store without builds: names, keys, and errors about missing templates."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from sandlot.host.free_space import FreeSpace
from sandlot.images import build
from sandlot.images import store as stores
from sandlot.images.build_cache import BuildCache
from sandlot.images.package_changes import PackageChange
from sandlot.images.recipe import Debian, Recipe
from sandlot.images.store import ImageStore
from sandlot.model.errors import ErrorCode, HostError, NotFoundError
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


def test_update_builds_ancestors_first_and_shows_changed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, built = "1", list[tuple[str, Path | None]]()

    def fill(folder: Path, recipe: Recipe, parent: Path | None, _runner: object, _report: object) -> None:
        if recipe.name == "broken":
            raise HostError("no")
        built.append((recipe.name, parent))
        status = folder / "tree/var/lib/dpkg/status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Package: {recipe.name}\nVersion: {version}\n")
        manifest = {"name": recipe.name, "digest": hashlib.sha256(f"{recipe.name}{version}".encode()).hexdigest(), "size_bytes": 1, "files": 1}
        (folder / "manifest.json").write_text(json.dumps(manifest))

    monkeypatch.setattr(build, "build_image", fill)
    known = {
        "one": Recipe("one", debian=Debian("bookworm")),
        **{name: Recipe(name, parent="one", files={"/name": name}) for name in ("two", "three", "broken")},
    }
    store = ImageStore(tmp_path, known)
    first = store.ensure("two")
    version = "2"
    updates = list(store.update(["two", "three"]))
    trees = tmp_path / "images"
    one = trees / updates[0].new.key / "tree"
    assert built == [("one", None), ("two", one), ("one", None), ("two", one), ("three", one)]
    assert [(each.old is None, each.new.name, each.changes) for each in updates] == [
        (False, "one", [PackageChange("deb", "one", "1", "2")]),
        (False, "two", [PackageChange("deb", "two", "1", "2")]),
        (True, "three", [PackageChange("deb", "three", "", "2")]),
    ]
    assert (store.ensure("two").key, store.ensure("two").digest) == (first.key, updates[1].new.digest)
    assert {each.name: each.origin for each in store.list()} == {"one": "Debian bookworm", "two": "one", "three": "one"}
    version = "3"
    with pytest.raises(HostError, match="no"):
        list(store.update(["broken"]))
    assert store.find("broken") is None
    with pytest.raises(NotFoundError):
        list(store.update(["nonsense"]))
