"""Folders and EROFS images of built-in templates: which of them a service uses, and when images are made."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.images.progress import Progress, discard_progress
from sandlot.images.store import WITH_BASE, Image, ImageStore
from sandlot.model.access import INTERNAL, LOCAL, OPERATOR
from sandlot.model.errors import HostError
from sandlot.model.specs import Limits, RootFs, RootKind, TemplateRef
from sandlot.server.image_templates import ImageTemplates
from tests.support.until import until

BASE = TemplateRef(LOCAL, "base")
PATH = Path("/nonexistent")
FOLDER, IMAGE = RootFs("folder", PATH), RootFs("image", image=PATH, index=PATH)


class Store(ImageStore):
    """A store that builds nothing.

    Attributes:
        image: Image of the template; None: there is none yet.
        made: Number of times that the image was made.
        error: Exception that making the image raises.
        finish: Event on which making the image waits.
    """

    __slots__ = ("bases", "error", "finish", "image", "made")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.image: RootFs | None = None
        self.made = 0
        self.bases: list[str] = []
        self.error: Exception | None = None
        self.finish = threading.Event()
        self.finish.set()

    def find_current_root(self, _name: str) -> RootFs | None:
        return FOLDER

    def find_current_root_image(self, _name: str) -> RootFs | None:
        return self.image

    def find_root(self, digest: str) -> RootFs | None:
        return self.image if digest == IMAGE.digest else None

    def builder_image(self, base: str, progress: Progress = discard_progress) -> RootFs:
        progress("builder: making the EROFS image")
        self.bases.append(base)
        return IMAGE

    def restore_root_image(self, digest: str, progress: Progress = discard_progress) -> RootFs | None:
        return self.root_image("base", progress) if digest == IMAGE.digest else None

    def root_image(self, name: str, progress: Progress = discard_progress) -> RootFs:
        self.made += 1
        while not self.finish.wait(0.01):
            progress(f"{name}: working")
        if self.error is not None:
            raise self.error
        self.image = IMAGE
        return IMAGE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


async def kind(templates: ImageTemplates, *, images: bool = True) -> RootKind:
    return (await templates.build(BASE, images=images)).root.kind


async def test_image_is_used_if_it_exists_and_the_driver_starts_images(store: Store) -> None:
    store.image, templates = IMAGE, ImageTemplates(store)
    assert [await kind(templates), await kind(templates, images=False)] == [RootKind.IMAGE, RootKind.TREE]
    assert store.made == 0
    assert (await templates.defaults(BASE)).root_kind is RootKind.TREE, "containers can start the template"


async def test_missing_image_is_made_once_and_used_by_the_next_service(store: Store) -> None:
    templates = ImageTemplates(store)
    assert await kind(templates, images=False) is RootKind.TREE
    assert store.made == 0, "a driver that starts only folders needs no image"
    assert await kind(templates) is RootKind.TREE
    await until(lambda: store.image is not None)
    assert await kind(templates) is RootKind.TREE, "warm sandboxes and template snapshots of the folder exist"
    assert store.made == 1
    await templates.aclose()
    assert await kind(ImageTemplates(store)) is RootKind.IMAGE


async def test_removed_image_is_replaced_by_the_folder(store: Store) -> None:
    store.image, templates = IMAGE, ImageTemplates(store)
    assert await kind(templates) is RootKind.IMAGE
    store.image = None
    assert await kind(templates) is RootKind.TREE
    store.image = IMAGE
    assert await kind(templates) is RootKind.IMAGE


async def test_image_that_cannot_be_made_changes_nothing(store: Store) -> None:
    templates = ImageTemplates(store)
    store.error = HostError("no mirror has Debian 13")
    for _ in range(3):
        assert await kind(templates) is RootKind.TREE
    await until(lambda: not vars(templates)["_making"])
    assert store.made == 1


async def test_stop_ends_the_making_of_an_image_at_its_next_step(store: Store) -> None:
    templates = ImageTemplates(store)
    store.finish.clear()
    assert await kind(templates) is RootKind.TREE
    assert {each.building for each in await templates.list(OPERATOR)} == {None}, "the template is built already"
    await templates.aclose()
    assert (store.made, store.image) == (1, None)
    await templates.aclose()


async def test_versions_of_languages_are_known_once_the_image_is_built(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {each.name: each for each in await ImageTemplates(store).list(OPERATOR)}
    assert listed["base"].languages == {"bash": None, "javascript": None, "perl": None, "python": None}
    image = Image("base", "key", "digest", PATH, 1, 1, {"python": "3.11.2", "bash": "5.2.15", "javascript": "24.19.0", "perl": "5.36.0"})
    monkeypatch.setattr(Store, "find", lambda _store, name: image if name == "base" else None)
    listed = {each.name: each for each in await ImageTemplates(store).list(OPERATOR)}
    assert (listed["base"].languages, listed["base"].digest) == (image.languages, "digest")
    assert listed["languages"].languages["go"] is None


async def test_evicted_image_of_a_snapshot_is_made_again(store: Store) -> None:
    templates = ImageTemplates(store)
    assert await templates.at(replace(BASE, digest="removed")) is None
    resolved = await templates.at(replace(BASE, digest="image"))
    assert resolved is not None
    assert resolved.root == IMAGE
    assert store.made == 1


async def test_limits_of_a_template_have_the_memory_of_its_recipe(store: Store) -> None:
    templates = ImageTemplates(store)
    assert (await templates.defaults(BASE)).limits == Limits()
    assert (await templates.defaults(TemplateRef(LOCAL, "desktop"))).limits == Limits(memory_bytes=2 << 30)
    listed = {each.name: each.limits for each in await templates.list(OPERATOR)}
    assert (listed["base"], listed["desktop"]) == (Limits(), Limits(memory_bytes=2 << 30))


async def test_builder_with_an_archive_of_a_base_is_a_template_of_the_service(store: Store) -> None:
    templates, name = ImageTemplates(store), f"{WITH_BASE}{'d' * 64}"
    ref = await templates.find(INTERNAL, name)
    assert ref == TemplateRef(LOCAL, name)
    assert await templates.find(OPERATOR, name) is None
    assert await templates.find(INTERNAL, "base+d") is None
    assert (await templates.defaults(ref)).digest == ""
    resolved = await templates.build(ref, images=True)
    assert (resolved.root, store.bases, resolved.env) == (IMAGE, ["d" * 64], store.environment("builder"))
    assert name not in {each.name for each in await templates.list(OPERATOR)}
