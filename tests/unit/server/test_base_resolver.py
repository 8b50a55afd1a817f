"""Bases of builds: templates, whose images are held, and an image in an uploaded archive, whose layers are stored before the build uses them."""

from __future__ import annotations

import asyncio
import errno
import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandlot.builds.layers import LayerStore
from sandlot.builds.plan import ArchiveBase, ImageBase
from sandlot.core.ports import ResolvedTemplate
from sandlot.images.store import Image
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.errors import InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import NodeId, TemplateId
from sandlot.model.image_aliases import ImageAliases
from sandlot.model.images import Layer
from sandlot.model.specs import Limits, RootFs, TemplateRef
from sandlot.model.templates import BuildRecord, BuildStatus, BuiltRoot, TemplateSettings
from sandlot.server import base_resolver
from sandlot.server.base_resolver import ServiceBaseResolver
from tests.support.oci import MadeImage, digest_of, docker_of, layout_of, tar_of, two_layers


@dataclass
class Roots:
    """Root images that need no making, and the names with which sandboxes start from them."""

    made: list[BuiltRoot] = field(default_factory=list)
    digest_of: dict[str, str] = field(default_factory=lambda: {"base": "1" * 64})
    held: list[set[str]] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)

    async def build(self, _ref: TemplateRef, *, images: bool) -> ResolvedTemplate:  # noqa: ARG002 - of the interface
        return ResolvedTemplate(RootFs("0" * 64, Path("/tree")), {"PATH": "/bin"})

    def image(self, name: str) -> Image:
        """Return an image, as the store finds it."""
        return Image(name, "k" * 64, self.digest_of[name], Path("/image"), 7, 1, {})

    def hold_images(self, node: str, digests: set[str]) -> None:
        assert node == "node"
        self.held.append(digests)
        if self.updates:
            self.digest_of["base"] = self.updates.pop(0)

    def held_images(self, node: str) -> set[str]:
        assert node == "node"
        return self.held[-1] if self.held else set()

    def root_digests(self, image: Image) -> frozenset[str]:
        return frozenset({f"root of {image.digest}"})

    def remove_unheld(self) -> int:
        return 0

    async def ensure(self, root: BuiltRoot, _layers: object, _report: object) -> None:
        self.made.append(root)

    async def digest(self, _root: BuiltRoot) -> str:
        return "d" * 64

    def lend(self, _principal: object, digest: str, _env: Mapping[str, str]) -> str:
        return f"lent-{digest[:4]}"

    async def find(self, principal: Principal, name: str) -> TemplateRef:
        return TemplateRef(principal.owner, name)

    async def current_build(self, ref: TemplateRef) -> BuildRecord | None:
        if ref.name in self.digest_of:
            return None
        settings = TemplateSettings({"MODE": "web"}, "user", "/srv", "serve")
        root = BuiltRoot((Layer("sha256:1", 1, "", ""),), 1, "1" * 64, "base")
        return BuildRecord(
            "id", TemplateId("web"), OPERATOR.owner, NodeId("node"), BuildStatus.READY, Limits(), datetime.now(UTC), settings=settings, root=root
        )


@dataclass
class At:
    """Bases with their stand-ins."""

    bases: ServiceBaseResolver
    roots: Roots
    layers: LayerStore
    lines: list[str] = field(default_factory=list)

    async def open(self, path: Path, image: str = "") -> Any:  # noqa: ANN401 - a base
        return await self.bases.resolve(OPERATOR, ArchiveBase(path, image), self.lines.append)


@pytest.fixture
def at(tmp_path: Path) -> At:
    roots, layers, unused = Roots(), LayerStore(tmp_path / "layers"), None
    stand_in: Any = roots
    nothing: Any = unused
    node = NodeId("node")
    return At(
        ServiceBaseResolver(templates=stand_in, images=nothing, roots=stand_in, layers=layers, registry=nothing, aliases=nothing, node=node),
        roots,
        layers,
    )


def archive(tmp_path: Path, files: Mapping[str, bytes]) -> Path:
    path = tmp_path / "image.tar"
    path.write_bytes(tar_of(files))
    return path


@pytest.mark.parametrize("kind", [docker_of, layout_of])
async def test_layers_of_an_archive_are_stored(at: At, tmp_path: Path, kind: Any) -> None:  # noqa: ANN401 - makes the files
    image = two_layers()
    base = await at.open(archive(tmp_path, kind(image)))
    assert (base.template, base.config.user, base.config.env) == ("lent-dddd", "1000", {"PATH": "/bin", "A": "b=c"})
    (root,) = at.roots.made
    assert [layer.diff_id for layer in root.layers] == [digest_of(each) for each in image.archives]
    (tmp_path / "image.tar").unlink()
    stored = [b"".join([piece async for piece in at.layers.open(layer)]) for layer in root.layers]
    assert [data if kind is docker_of else gzip.decompress(data) for data in stored] == list(image.archives)
    assert at.lines[-1].startswith("reading layer 2 of 2")


async def test_template_of_a_user_is_the_base_without_its_start_command(at: At) -> None:
    base = await at.bases.resolve(OPERATOR, ImageBase("web"), at.lines.append)
    assert (base.template, at.roots.made) == ("lent-dddd", [base.root])
    assert (base.config.env, base.config.user, base.config.working_dir) == ({"MODE": "web"}, "user", "/srv")
    assert (base.config.entrypoint, base.config.cmd) == ((), ())


@dataclass
class OnImages:
    """Bases on a stand-in for the image store.

    Attributes:
        images: Image store.
        templates: Templates, which share the digests of the images.
    """

    bases: ServiceBaseResolver
    images: Roots
    templates: Roots


@pytest.fixture
def on_images(at: At, monkeypatch: pytest.MonkeyPatch) -> OnImages:
    templates = Roots(digest_of=at.roots.digest_of)
    monkeypatch.setattr(at.roots, "find", at.roots.image)
    parts: dict[str, Any] = {"templates": templates, "images": at.roots, "roots": templates}
    bases = ServiceBaseResolver(**parts, layers=at.layers, registry=parts["roots"], aliases=parts["roots"], node=NodeId("node"))
    return OnImages(bases, at.roots, templates)


async def test_image_of_a_builtin_base_is_held_from_the_beginning_of_a_build(at: At, on_images: OnImages) -> None:
    bases, stand_in, templates = on_images.bases, on_images.images, on_images.templates
    for _ in range(2):
        base = await bases.resolve(OPERATOR, ImageBase("base"), at.lines.append)
        assert (base.template, base.root.base, base.config.env) == ("base", "1" * 64, {"PATH": "/bin"})
        assert base.digests == {f"root of {'1' * 64}"}
    assert stand_in.held == [{"1" * 64}]
    build = await templates.current_build(TemplateRef(OPERATOR.owner, "web"))
    assert build is not None
    await bases.prune([build])
    await bases.prune([])
    assert stand_in.held[1:] == [{"1" * 64}, set()]
    stand_in.updates = ["2" * 64]
    with pytest.raises(NotFoundError, match="updated during the build"):
        await bases.resolve(OPERATOR, ImageBase("base"), at.lines.append)
    await bases.resolve(OPERATOR, ImageBase("base"), at.lines.append)
    assert stand_in.held[-1] == {"1" * 64, "2" * 64}


async def test_base_of_an_alias_has_the_user_of_the_image(at: At, on_images: OnImages, monkeypatch: pytest.MonkeyPatch) -> None:
    find, templates = on_images.templates.find, on_images.templates

    async def only_base(principal: Principal, name: str) -> TemplateRef | None:
        return await find(principal, name) if name == "base" else None

    monkeypatch.setattr(templates, "find", only_base)
    monkeypatch.setattr(on_images.bases, "_aliases", ImageAliases())
    node, python, base = [
        await on_images.bases.resolve(OPERATOR, ImageBase(name), at.lines.append) for name in ("node:20-slim", "python:3.12", "base")
    ]
    assert ([each.user for each in (node, python, base)], python.key) == (["node", "", ""], base.key)
    assert node.key != base.key, "cached steps on the base have no such user"


async def test_builds_that_begin_together_hold_all_their_images(at: At, on_images: OnImages) -> None:
    on_images.images.digest_of["agent"] = "3" * 64
    await asyncio.gather(*(on_images.bases.resolve(OPERATOR, ImageBase(name), at.lines.append) for name in ("base", "agent", "base")))
    assert on_images.images.held == [{"1" * 64}, {"1" * 64, "3" * 64}]


async def test_image_counts_as_held_only_if_every_list_that_may_be_stored_has_it(
    at: At, on_images: OnImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases, images = on_images.bases, on_images.images
    await bases.resolve(OPERATOR, ImageBase("base"), at.lines.append)
    hold = images.hold_images

    def fail(node: str, digests: set[str]) -> None:
        hold(node, digests)
        raise OSError(errno.EIO, "I/O error")

    with monkeypatch.context() as failing:
        failing.setattr(images, "hold_images", fail)
        with pytest.raises(OSError, match="I/O"):
            await bases.prune([])
    await bases.resolve(OPERATOR, ImageBase("base"), at.lines.append)
    assert images.held == [{"1" * 64}, set(), {"1" * 64}]


async def test_first_build_keeps_what_was_held_before_the_restart(at: At, on_images: OnImages) -> None:
    on_images.images.held.append({"4" * 64})
    await on_images.bases.resolve(OPERATOR, ImageBase("base"), at.lines.append)
    assert on_images.images.held[-1] == {"1" * 64, "4" * 64}


async def test_archive_of_a_root_filesystem_is_one_layer(at: At, tmp_path: Path) -> None:
    path = tmp_path / "root.tar.gz"
    path.write_bytes(gzip.compress(tar_of({"etc/passwd": b"root"})))
    await at.open(path)
    (root,) = at.roots.made
    assert [layer.diff_id for layer in root.layers] == [digest_of(tar_of({"etc/passwd": b"root"}))]


async def test_bad_archive_leaves_no_layer(at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = two_layers()
    with pytest.raises(NotFoundError, match="no image 'b'"):
        await at.open(archive(tmp_path, docker_of(image, "a")), "b")
    wrong = layout_of(image)
    blob = f"blobs/sha256/{digest_of(image.layers[0])[7:]}"
    with pytest.raises(InvalidRequestError, match="does not match its digest"):
        await at.open(archive(tmp_path, wrong | {blob: bytes(len(wrong[blob]))}))
    (tmp_path / "text").write_text("text" * 1000)
    with pytest.raises(InvalidRequestError, match="not a tar archive"):
        await at.open(tmp_path / "text")
    monkeypatch.setattr(base_resolver, "MAX_ARCHIVE_BYTES", 1000)
    with pytest.raises(LimitError, match="more than 1000 bytes"):
        await at.open(archive(tmp_path, docker_of(MadeImage([tar_of({"a": bytes(2000)})]))))
    assert at.roots.made == []
    assert not list((tmp_path / "layers").iterdir())
