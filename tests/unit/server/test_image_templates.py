"""Folders and EROFS images of built-in templates: which of them a service uses, and when images are made."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.images.progress import Progress, discard_progress
from sandlot.images.store import ImageStore
from sandlot.model.access import LOCAL, OPERATOR
from sandlot.model.errors import HostError
from sandlot.model.specs import RootFs, RootKind, TemplateRef
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

    __slots__ = ("error", "finish", "image", "made")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.image: RootFs | None = None
        self.made = 0
        self.error: Exception | None = None
        self.finish = threading.Event()
        self.finish.set()

    def find_current_root(self, _name: str) -> RootFs | None:
        return FOLDER

    def find_current_root_image(self, _name: str) -> RootFs | None:
        return self.image

    def find_root(self, digest: str) -> RootFs | None:
        return self.image if digest == IMAGE.digest else None

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


async def test_evicted_image_of_a_snapshot_is_made_again(store: Store) -> None:
    templates = ImageTemplates(store)
    assert await templates.at(replace(BASE, digest="removed")) is None
    resolved = await templates.at(replace(BASE, digest="image"))
    assert resolved is not None
    assert resolved.root == IMAGE
    assert store.made == 1
