"""The image store without builds: names, keys, and errors about missing templates."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.host import durable
from sandlot.host.free_space import FreeSpace
from sandlot.host.locked_folder import LockedFolder
from sandlot.images import build, erofs_image
from sandlot.images import store as stores
from sandlot.images.artifact_cache import ArtifactCache
from sandlot.images.package_changes import PackageChange
from sandlot.images.recipe import Debian, Recipe
from sandlot.images.store import HOLD_S, WITH_BASE, ImageStore
from sandlot.model.errors import ConflictError, ErrorCode, HostError, NotFoundError, UnavailableError
from sandlot.model.specs import RootFs
from tests.support.killed import is_killed_at


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
    ArtifactCache(tmp_path, "roots", FreeSpace(tmp_path)).ensure(digest, lambda folder, _lock: (folder / "tree").mkdir(), lambda: None)
    image = "b" * 64
    ArtifactCache(tmp_path, "root-images", FreeSpace(tmp_path)).ensure(image, lambda folder, _lock: (folder / "root.erofs").touch(), lambda: None)
    store, into = ImageStore(tmp_path, {}), tmp_path / "root-images" / image

    assert store.prune(keep=[digest, image]) == 0
    assert store.find_root(digest) == RootFs(digest, tmp_path / "roots" / digest / "tree")
    (into / "manifest.json").write_text('{"size_bytes": 1}')
    assert store.find_root(image) == RootFs(image, image=into / "root.erofs", index=into / "root.index")

    assert store.prune() == 2
    assert store.find_root(digest) is None
    assert store.find_root(image) is None


def add_root_image(cache: Path, key: str, used_s: float, name: str = "base") -> None:
    """Add an EROFS image of 4 bytes whose key is a repeated letter."""

    def fill(folder: Path, _lock: int) -> None:
        (folder / "manifest.json").write_text(json.dumps({"name": name, "size_bytes": 4}))
        os.utime(folder / "manifest.json", (used_s, used_s))

    ArtifactCache(cache, "root-images", FreeSpace(cache)).ensure(key * 64, fill, lambda: None)


def test_images_are_evicted_by_their_last_use_and_only_if_unused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.time()
    for key, used_s in (("a", now_s - 3000), ("b", now_s - 2000), ("c", now_s - 1000), ("d", now_s)):
        add_root_image(tmp_path, key, used_s)
    store = ImageStore(tmp_path, {})
    assert store.find_root("a" * 64) is not None, "a use"
    for most_bytes, left in ((16, "abcd"), (15, "acd"), (0, "ad")):
        monkeypatch.setattr(stores, "MAX_ROOT_IMAGE_BYTES", most_bytes)
        store._evict_root_images()  # noqa: SLF001 - called when an image was made
        assert sorted(folder.name[0] for folder in (tmp_path / "root-images").iterdir()) == list(left)
    assert store.restore_root_image("b" * 64) is None, "nothing is left to make it from"


def test_images_of_builds_are_evicted_before_those_of_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, builder = time.time(), f"{WITH_BASE}{'f' * 64}"
    for key, age_s, name in (("a", 5000, "base"), ("b", 4000, "languages"), ("c", 3000, builder), ("d", 2000, builder), ("e", 0, builder)):
        add_root_image(tmp_path, key, now_s - age_s, name)
    for most_bytes, left in ((16, "abde"), (12, "abe"), (8, "abe"), (7, "be"), (0, "e")):
        monkeypatch.setattr(stores, "MAX_ROOT_IMAGE_BYTES", most_bytes)
        ImageStore(tmp_path, {})._evict_root_images()  # noqa: SLF001 - called when an image was made
        assert sorted(folder.name[0] for folder in (tmp_path / "root-images").iterdir()) == list(left), "an image of a build is still in use"


def test_update_builds_ancestors_first_and_shows_changed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version, built = "1", list[tuple[str, Path | None]]()

    def fill(folder: Path, line: Sequence[Recipe], parent: Path | None, _runner: object, _report: object) -> None:
        recipe = line[-1]
        if recipe.name == "broken":
            raise HostError("no")
        built.append((recipe.name, parent))
        status = folder / "tree/var/lib/dpkg/status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Package: {recipe.name}\nVersion: {version}\n")
        digest = hashlib.sha256(f"{recipe.name}{version}".encode()).hexdigest()
        manifest = {"name": recipe.name, "digest": digest, "size_bytes": 1, "files": 1, "languages": {"python": version}}
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
    assert (first.languages, store.ensure("two").languages) == ({"python": "1"}, {"python": "2"})
    version = "3"
    with pytest.raises(HostError, match="no"):
        list(store.update(["broken"]))
    assert store.find("broken") is None
    with pytest.raises(NotFoundError):
        list(store.update(["nonsense"]))


BASE, CHILD = Recipe("base", debian=Debian("bookworm")), Recipe("child", parent="base", files={"/name": "child"})


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Version of the packages of all images that are built from now on."""
    state = {"version": "1"}

    def fill(folder: Path, line: Sequence[Recipe], _parent: object, _runner: object, _report: object) -> None:
        (folder / "tree").mkdir()
        (folder / "tree/version").write_text(state["version"])
        digest = hashlib.sha256(f"{line[-1].name}{state['version']}".encode()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps({"name": line[-1].name, "digest": digest, "size_bytes": 1, "files": 1}))

    monkeypatch.setattr(build, "build_image", fill)
    return state


def test_root_filesystems_of_an_image_are_known_before_they_are_made(tmp_path: Path, state: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_guest(folder: Path, *_: object) -> None:
        (folder / "tree").mkdir()
        (folder / "manifest.json").write_text(json.dumps({"name": "guest", "digest": "e" * 64, "size_bytes": 1}))

    def fill_image(_tree: object, digest: str, folder: Path, *_: object) -> None:
        (folder / "root.erofs").write_bytes(bytes(1024 + 48) + bytes.fromhex(digest)[:16])

    for step in ("build_interpreter", "build_guest_layer"):
        monkeypatch.setattr(build, step, fill_guest)
    monkeypatch.setattr(build, "build_root", lambda folder, *_: (folder / "tree").mkdir())
    monkeypatch.setattr(erofs_image, "build_erofs_image", fill_image)
    store = ImageStore(tmp_path, {"base": BASE, "builder": replace(BASE, name="builder", files={"/builder": ""})})
    image = store.ensure("base")
    assert store.root_digests(image) == set()
    root = store.root("base")
    assert store.root_digests(image) == {root.digest}
    made = store.root_image("base")
    assert store.root_digests(image) == {root.digest, made.digest}
    store.hold_images("one", {image.digest})
    below = store.builder_image(image.digest)
    state["version"] = "2"
    list(store.update(["base"]))
    assert store.root_digests(image) == {root.digest, made.digest}
    assert store.root("base").digest not in store.root_digests(image)
    assert store.base_image(image.digest) == made, "also after an update, for builds that begin with it"
    assert store.builder_image(image.digest) == below
    new = store.ensure("base").digest
    assert store.base_image(new) == store.root_image("base") != made
    assert store.builder_image(new).digest not in {below.digest, made.digest}
    with pytest.raises(NotFoundError):
        store.base_image("0" * 64)


def version_of(store: ImageStore, digest: str) -> str | None:
    image = store.find_image(digest)
    return None if image is None else (image.path / "version").read_text()


def test_update_keeps_an_image_while_a_service_holds_it(tmp_path: Path, state: dict[str, str]) -> None:
    store = ImageStore(tmp_path, {"base": BASE, "child": CHILD})
    old, child = store.ensure("base"), store.ensure("child")
    store.hold_images("one", {old.digest})
    store.hold_images("two", {old.digest})
    assert (store.held_images("one"), store.held_images("three")) == ({old.digest}, set())
    state["version"] = "2"
    list(store.update(["child"]))
    assert (version_of(store, old.digest), version_of(store, child.digest)) == ("1", None)
    listed = {(each.name, each.digest == old.digest, each.held, each.origin) for each in store.list()}
    assert listed == {("base", True, True, "Debian bookworm"), ("base", False, False, "Debian bookworm"), ("child", False, False, "base")}
    assert (store.prune(), store.ensure("base").digest != old.digest) == (0, True)
    store.hold_images("one", ())
    assert (store.remove_unheld(), version_of(store, old.digest)) == (0, "1")
    store.hold_images("two", {store.ensure("base").digest})
    assert (store.remove_unheld(), version_of(store, old.digest)) == (1, None)


def test_update_that_changes_nothing_keeps_no_second_image(tmp_path: Path, state: dict[str, str]) -> None:
    store = ImageStore(tmp_path, {"base": BASE})
    image = store.ensure("base")
    store.hold_images("one", {image.digest})
    list(store.update(["base"]))
    assert [each.key for each in store.list()] == [image.key]
    state["version"] = "2"
    list(store.update(["base"]))
    state["version"] = "1"
    list(store.update(["base"]))
    assert ([each.key for each in store.list()], version_of(store, image.digest)) == ([image.key], "1")


def test_image_of_an_old_recipe_is_pruned_once_no_service_holds_it(tmp_path: Path, state: dict[str, str]) -> None:
    old = ImageStore(tmp_path, {"base": BASE}).ensure("base")
    state["version"] = "2"
    store = ImageStore(tmp_path, {"base": replace(BASE, files={"/new": "file"})})
    store.ensure("base")
    store.hold_images("one", {old.digest})
    assert (store.prune(), version_of(store, old.digest)) == (0, "1")
    unused_since_s = time.time() - HOLD_S - 1
    os.utime(tmp_path / "held/one", (unused_since_s, unused_since_s))
    assert (store.prune(), version_of(store, old.digest)) == (1, None)


def test_image_that_another_process_removes_meanwhile_is_skipped(tmp_path: Path, state: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    del state
    known = {"base": BASE, "child": CHILD}
    store, read = ImageStore(tmp_path, known), build.read_manifest
    base, child = store.ensure("base"), store.ensure("child")

    def remove_first(folder: Path) -> Mapping[str, object]:
        if folder.name == child.key and folder.exists():
            ImageStore(tmp_path, known).remove(child.key)
        return read(folder)

    for look in (lambda: store.find_image(base.digest), store.list):
        store.ensure("child")
        with monkeypatch.context() as removing:
            removing.setattr(build, "read_manifest", remove_first)
            assert look()
        assert store.find("child") is None
    assert store.find_image(child.digest) is None


def hold_before(monkeypatch: pytest.MonkeyPatch, module: Any, step: str, store: ImageStore, digest: str) -> None:  # noqa: ANN401 - a module
    """Let a service begin to hold an image before a step of the next update."""
    function = getattr(module, step)

    def hold(*args: Any) -> None:  # noqa: ANN401 - those of the step
        monkeypatch.setattr(module, step, function)
        store.hold_images("one", {digest})
        function(*args)

    monkeypatch.setattr(module, step, hold)


@pytest.mark.parametrize("module, step", [(build, "build_image"), (durable, "sync_file_system")])
def test_image_that_a_build_begins_to_use_during_an_update_is_kept(
    tmp_path: Path,
    state: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    module: Any,  # noqa: ANN401 - a module
    step: str,
) -> None:
    store = ImageStore(tmp_path, {"base": BASE})
    old = store.ensure("base")
    hold_before(monkeypatch, module, step, store, old.digest)
    state["version"] = "2"
    list(store.update(["base"]))
    assert version_of(store, old.digest) == "1"


def test_update_that_is_killed_loses_no_image_that_a_build_uses(tmp_path: Path, state: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path, {"base": BASE})
    old = store.ensure("base")
    state["version"] = "2"
    hold_before(monkeypatch, durable, "sync_file_system", store, old.digest)
    for step in itertools.count(1):
        is_killed = is_killed_at(step, tmp_path, lambda: list(store.update(["base"])))
        if old.digest in store.held_images("one"):
            assert version_of(store, old.digest) == "1", step
        if not is_killed:
            break
        state["version"] = "1"
        list(store.update(["base"]))
        store.hold_images("one", ())
        store.remove_unheld()
        state["version"] = "2"
        hold_before(monkeypatch, durable, "sync_file_system", store, old.digest)
    assert step > 10


def test_no_service_begins_to_use_an_image_while_it_is_replaced(tmp_path: Path, state: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path, {"base": BASE})
    old, publish = store.ensure("base"), LockedFolder.publish
    held: list[set[str]] = []

    def publish_slowly(folder: LockedFolder, path: Path, *, replaces: bool = False) -> None:
        holding = threading.Thread(target=store.hold_images, args=("one", {old.digest}))
        holding.start()
        holding.join(0.05)
        held.append(store.held_images("one"))
        publish(folder, path, replaces=replaces)
        threads.append(holding)

    threads: list[threading.Thread] = []
    monkeypatch.setattr(LockedFolder, "publish", publish_slowly)
    state["version"] = "2"
    list(store.update(["base"]))
    threads[0].join(30)
    assert (held, store.held_images("one"), store.ensure("base").digest == old.digest) == ([set()], {old.digest}, False)


@pytest.fixture
def parts(state: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Version of the packages; roots are copies of their images, and EROFS images have the version of the root and of the builder."""

    def fill_guest(folder: Path, *_: object) -> None:
        (folder / "tree").mkdir()
        (folder / "manifest.json").write_text(json.dumps({"name": "guest", "digest": "e" * 64, "size_bytes": 1}))

    def fill_root(folder: Path, image: Path, _guest: Path) -> None:
        (folder / "tree").mkdir()
        (folder / "tree/version").write_text((image / "version").read_text())

    def fill_image(root: Path, _digest: str, folder: Path, builder: Path, *_: object) -> None:
        (folder / "root.erofs").write_text(" ".join((tree / "version").read_text() for tree in (root, builder)))

    for step in ("build_interpreter", "build_guest_layer"):
        monkeypatch.setattr(build, step, fill_guest)
    monkeypatch.setattr(build, "build_root", fill_root)
    monkeypatch.setattr(erofs_image, "build_erofs_image", fill_image)
    return state


def update_before(monkeypatch: pytest.MonkeyPatch, module: Any, step: str, store: ImageStore, name: str, parts: dict[str, str]) -> None:  # noqa: ANN401
    """Let another process update an image before a step that reads its files."""
    function = getattr(module, step)

    def update(*args: Any) -> None:  # noqa: ANN401 - those of the step
        monkeypatch.setattr(module, step, function)
        parts["version"] = "2"
        list(store.update([name]))
        function(*args)

    monkeypatch.setattr(module, step, update)


def test_root_of_an_image_that_is_updated_has_no_files_of_both(tmp_path: Path, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path, {"base": BASE})
    old = store.root_digests(store.ensure("base"))
    update_before(monkeypatch, build, "build_root", store, "base", parts)
    root = store.root("base")
    assert (root.require_tree() / "version").read_text() == "2"
    assert store.root_digests(store.ensure("base")) == {root.digest} != old
    assert [each.digest for each in store.list() if each.kind == "roots"] == [store.ensure("base").digest]


def test_root_image_has_no_files_of_an_image_that_is_updated(tmp_path: Path, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path, {"builder": replace(BASE, name="builder")})
    store.ensure("builder")
    update_before(monkeypatch, erofs_image, "build_erofs_image", store, "builder", parts)
    made = store.root_image("builder")
    assert made.require_image().read_text() == "2 2"
    assert [each.key for each in store.list() if each.kind == "root-images"] == [made.digest]


def test_image_of_a_base_that_is_updated_is_that_of_its_digest(tmp_path: Path, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path, {"base": BASE, "builder": replace(BASE, name="builder", files={"/builder": ""})})
    base = store.ensure("base")
    store.hold_images("one", {base.digest})
    update_before(monkeypatch, build, "build_root", store, "base", parts)
    assert (store.base_image(base.digest).require_image().read_text(), version_of(store, base.digest)) == ("1 2", "1")


@pytest.mark.parametrize("has_new_recipe", [False, True])
def test_evicted_image_is_made_again_after_an_update_of_the_builder(tmp_path: Path, parts: dict[str, str], *, has_new_recipe: bool) -> None:
    known = {"base": BASE, "builder": replace(BASE, name="builder", files={"/builder": ""})}
    store = ImageStore(tmp_path, known)
    image = store.root_image("base")
    content = image.require_image().read_bytes()
    for version in ("2", "3"):
        parts["version"] = version
        list(store.update(["base", "builder"]))
    store.hold_images("one", ())
    store.remove_unheld()
    if has_new_recipe:
        store = ImageStore(tmp_path, {**known, "builder": replace(BASE, name="builder", files={"/other": ""})})
        store.ensure("builder")
    assert store.root_image("base") != image
    store.remove(image.digest)  # as if it was evicted
    assert store.restore_root_image(image.digest) == image
    assert image.require_image().read_bytes() == content
    assert store.prune() > 0
    assert store.restore_root_image(image.digest) is None


def test_root_is_complete_if_an_update_without_changes_replaces_its_image(
    tmp_path: Path, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, function, made = ImageStore(tmp_path, {"base": BASE}), build.build_root, list[int]()

    def build_root_of_a_folder_that_is_removed(folder: Path, image: Path, guest: Path) -> None:
        function(folder, image, guest)
        made.append(len(made))
        if len(made) == 1:
            list(store.update(["base"]))
            (folder / "tree/version").unlink()  # the walk read the old folder while it was removed

    monkeypatch.setattr(build, "build_root", build_root_of_a_folder_that_is_removed)
    digest = store.ensure("base").digest
    root = store.root("base")
    assert (store.ensure("base").digest, parts["version"]) == (digest, "1"), "the update has changed nothing"
    assert (made, (root.require_tree() / "version").read_text()) == ([0, 1], "1")


BUILDER = replace(BASE, name="builder", files={"/builder": ""})


def test_held_base_stays_readable_when_it_is_removed(tmp_path: Path, parts: dict[str, str]) -> None:
    store = ImageStore(tmp_path, {"base": BASE, "builder": BUILDER})
    base = store.ensure("base").digest
    with store.hold_base_image(base) as image:
        store.remove(store.base_image(base).digest)
        assert image.read_text() == f"{parts['version']} 1"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_base_that_is_removed_before_it_is_held_is_made_again(tmp_path: Path, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store, find, removed = ImageStore(tmp_path, {"base": BASE, "builder": BUILDER}), ImageStore.base_image, list[str]()
    base, last = store.ensure("base").digest, 3

    def remove(self: ImageStore, *args: Any) -> RootFs:  # noqa: ANN401 - those of the method
        root = find(self, *args)
        if len(removed) < last:
            removed.append(root.digest)
            self.remove(root.digest)
        return root

    monkeypatch.setattr(erofs_image, "read_uuid", lambda image: image.read_text())
    monkeypatch.setattr(ImageStore, "base_image", remove)
    with store.hold_base_image(base) as image:
        assert (image.read_text(), len(removed)) == (f"{parts['version']} 1", 3)
    removed.clear()
    assert (store.builder_image(base).require_image().is_file(), len(removed)) == (True, 3)
    last = 1000
    with pytest.raises(ConflictError, match="again and again"), store.hold_base_image(base):
        pytest.fail("held")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_stopped_store_builds_nothing(tmp_path: Path, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    store = ImageStore(tmp_path, {"base": BASE, "builder": BUILDER})

    def make(*_: object) -> None:
        store.stop.set()

    monkeypatch.setattr(erofs_image, "build_erofs_image", make)
    base = store.ensure("base").digest
    with pytest.raises(UnavailableError):
        store.builder_image(base)
    assert (list((tmp_path / "root-images").iterdir()), list((tmp_path / "tmp").iterdir())) == ([], [])
    assert (store.ensure("base").digest, parts) == (base, {"version": "1"}), "what is built is found"
