"""Bases of builds: an image in an uploaded archive, whose layers are stored before the build uses them."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandlot.builds.layers import LayerStore
from sandlot.builds.plan import ArchiveBase
from sandlot.model.access import OPERATOR
from sandlot.model.errors import InvalidRequestError, LimitError, NotFoundError
from sandlot.model.templates import BuiltRoot
from sandlot.server import build_bases
from sandlot.server.build_bases import ServiceBases
from tests.support.oci import MadeImage, digest_of, tar_of, two_layers
from tests.unit.images.test_oci_archive import docker_of, layout_of


@dataclass
class Roots:
    """Root images that need no making, and the names with which sandboxes start from them."""

    made: list[BuiltRoot] = field(default_factory=list)

    async def ensure(self, root: BuiltRoot, _layers: object, _report: object) -> None:
        self.made.append(root)

    async def digest(self, _root: BuiltRoot) -> str:
        return "d" * 64

    def lend(self, _principal: object, digest: str, _env: Mapping[str, str]) -> str:
        return f"lent-{digest[:4]}"


@dataclass
class At:
    """Bases with their stand-ins."""

    bases: ServiceBases
    roots: Roots
    layers: LayerStore
    lines: list[str] = field(default_factory=list)

    async def open(self, path: Path, image: str = "") -> Any:  # noqa: ANN401 - a base
        return await self.bases.open(OPERATOR, ArchiveBase(path, image), self.lines.append)


@pytest.fixture
def at(tmp_path: Path) -> At:
    roots, layers, unused = Roots(), LayerStore(tmp_path / "layers"), None
    stand_in: Any = roots
    nothing: Any = unused
    return At(
        ServiceBases(templates=stand_in, images=nothing, roots=stand_in, layers=layers, registry=nothing, aliases=nothing, snapshots=nothing),
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
    monkeypatch.setattr(build_bases, "MAX_ARCHIVE_BYTES", 1000)
    with pytest.raises(LimitError, match="more than 1000 bytes"):
        await at.open(archive(tmp_path, docker_of(MadeImage([tar_of({"a": bytes(2000)})]))))
    assert at.roots.made == []
    assert not list((tmp_path / "layers").iterdir())
