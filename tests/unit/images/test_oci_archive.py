"""Images in OCI layouts, archives of docker save and of root filesystems: read where they are, verified, and refused if they are hostile."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandlot.images import oci_archive
from sandlot.images.oci_archive import open_archive
from sandlot.model.errors import InvalidRequestError, LimitError, NotFoundError, SandlotError
from sandlot.model.image_manifests import TAR, TAR_GZIP
from tests.support.oci import MadeImage, digest_of, docker_of, layout_of, tar_of, two_layers


def written(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def archived(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def layers_in(path: Path, name: str | None = None) -> list[bytes]:
    with open_archive(path) as archive:
        return [b"".join(archive.read_layer(layer)) for layer in archive.image(name).layers]


def refusal(path: Path) -> SandlotError:
    with pytest.raises(SandlotError) as caught:
        layers_in(path)
    return caught.value


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz"])
def test_oci_layout_is_read(tmp_path: Path, form: str) -> None:
    made = two_layers()
    files = layout_of(made, "latest")
    if form == "folder":
        path = written(tmp_path / "layout", files)
    else:
        path = archived(tmp_path / form, tar_of(files) if form == "tar" else gzip.compress(tar_of(files)))
    with open_archive(path) as archive:
        assert archive.names == ("latest",)
        image = archive.image()
        assert (image.digest, image.config.user) == (digest_of(made.manifest), "1000")
        assert [layer.media_type for layer in image.layers] == [TAR_GZIP] * 2
        assert [b"".join(archive.read_layer(layer)) for layer in image.layers] == made.layers
    assert list(tmp_path.iterdir()) == [path]


def test_archive_of_docker_save_is_read(tmp_path: Path) -> None:
    made = two_layers()
    with open_archive(archived(tmp_path / "a.tar", tar_of(docker_of(made, "app:1", "app:2")))) as archive:
        assert archive.names == ("app:1", "app:2")
        image = archive.image("app:2")
        assert image == archive.image()
        assert [(layer.digest, layer.diff_id, layer.media_type) for layer in image.layers] == [
            (digest_of(data), digest_of(data), TAR) for data in made.archives
        ]
        assert [b"".join(archive.read_layer(layer)) for layer in image.layers] == made.archives
        with pytest.raises(NotFoundError, match="app:1, app:2"):
            archive.image("other")


def test_compressed_layers_of_docker_save_are_read(tmp_path: Path) -> None:
    made = two_layers()
    files = docker_of(made) | {f"{number}/layer.tar": layer for number, layer in enumerate(made.layers)}
    with open_archive(archived(tmp_path / "a.tar", tar_of(files))) as archive:
        assert [layer.media_type for layer in archive.image().layers] == [TAR_GZIP] * 2
    assert layers_in(tmp_path / "a.tar") == made.layers


def test_repeated_layers_of_docker_save_are_links(tmp_path: Path) -> None:
    made = MadeImage([tar_of({"a": b"1"})] * 2)
    files = docker_of(made)
    del files["1/layer.tar"]
    buffer = io.BytesIO(tar_of(files))
    with tarfile.open(fileobj=buffer, mode="a") as archive:
        link = tarfile.TarInfo("1/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../0/layer.tar"
        archive.addfile(link)
    assert layers_in(archived(tmp_path / "a.tar", buffer.getvalue())) == list(made.archives)


@pytest.mark.parametrize("compressed", [False, True])
def test_archive_of_a_root_filesystem_is_one_layer(tmp_path: Path, *, compressed: bool) -> None:
    root = tar_of({"etc/passwd": b"root", "manifest/json": b""})
    path = archived(tmp_path / "root", gzip.compress(root) if compressed else root)
    with open_archive(path) as archive:
        (layer,) = archive.image().layers
        assert (layer.digest, layer.diff_id, layer.size_bytes, layer.media_type) == (digest_of(root), digest_of(root), len(root), TAR)
    assert layers_in(path) == [root]


def test_root_filesystem_may_have_more_entries_than_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci_archive, "MAX_MEMBERS", 3)
    root = tar_of({f"file{number}": b"" for number in range(9)})
    assert layers_in(archived(tmp_path / "root", root)) == [root]


def test_one_of_several_images_must_be_named(tmp_path: Path) -> None:
    first, second = two_layers(), MadeImage([tar_of({"b": b""})])
    files = layout_of(first, "one") | {f"blobs/sha256/{digest[7:]}": data for digest, data in second.blobs.items()}
    files[f"blobs/sha256/{digest_of(second.manifest)[7:]}"] = second.manifest
    entries = json.loads(files["index.json"])["manifests"]
    entries.append({"digest": digest_of(second.manifest), "annotations": {"org.opencontainers.image.ref.name": "two"}})
    files["index.json"] = json.dumps({"manifests": entries}).encode()
    path = written(tmp_path / "layout", files)
    assert "one, two" in refusal(path).message
    assert layers_in(path, "two") == second.layers


@pytest.mark.parametrize("form", ["folder", "tar"])
@pytest.mark.parametrize("part", ["manifest", "configuration", "layer", "missing layer", "short layer"])
def test_content_that_differs_from_its_digest_is_refused(tmp_path: Path, form: str, part: str) -> None:
    made = two_layers()
    files = layout_of(made)
    data = {"manifest": made.manifest, "configuration": made.config}.get(part, made.layers[0])
    name = f"blobs/sha256/{digest_of(data)[7:]}"
    files[name] = data[:-1] if part == "short layer" else data[:-1] + b" "
    if part == "missing layer":
        del files[name]
    path = written(tmp_path / "layout", files) if form == "folder" else archived(tmp_path / "a.tar", tar_of(files))
    error = refusal(path)
    assert isinstance(error, InvalidRequestError | NotFoundError)
    assert (part in error.message) or (digest_of(made.layers[0]) in error.message)


def test_layer_of_docker_save_that_differs_from_its_diff_id_is_refused(tmp_path: Path) -> None:
    files = docker_of(two_layers()) | {"0/layer.tar": tar_of({"evil": b""})}
    assert "layer 1" in refusal(archived(tmp_path / "a.tar", tar_of(files))).message


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "blobs/../../outside", "link"])
def test_folder_with_a_name_outside_of_it_is_refused(tmp_path: Path, name: str) -> None:
    made = two_layers()
    (tmp_path / "outside").write_bytes(made.config)
    manifest = [{"Config": name, "Layers": ["0/layer.tar", "1/layer.tar"]}]
    path = written(tmp_path / "layout", docker_of(made) | {"manifest.json": json.dumps(manifest).encode()})
    (path / "link").symlink_to(tmp_path / "outside")
    assert "does not have its configuration" in refusal(path).message


def test_pipe_in_a_folder_is_not_opened(tmp_path: Path) -> None:
    path = written(tmp_path / "layout", {"oci-layout": b"{}"})
    os.mkfifo(path / "index.json")
    assert isinstance(refusal(path), InvalidRequestError)


@pytest.mark.parametrize(
    "data, text",
    [
        (b"", "not a tar archive"),
        (b"hello" * 1000, "not a tar archive"),
        (b"\x28\xb5\x2f\xfd" + b"0" * 100, "zstd"),
        (gzip.compress(tar_of({"a": b"1" * 9999}))[:-20], "damaged"),
        (b"\x1f\x8b" + b"0" * 100, "damaged"),
        (tar_of({"manifest.json": b"[]"}), "does not name 1 to"),
        (tar_of({"manifest.json": b"{"}), "JSON"),
        (tar_of({"manifest.json": b'[{"Config": 1}]'}), "without a configuration"),
        (tar_of({"manifest.json": b'[{"Config": "x", "Layers": []}]'}), "does not have its configuration"),
        (tar_of({"manifest.json": json.dumps([{"Config": "x", "Layers": ["l"] * 128}]).encode()}), "128 layers"),
        (tar_of({"oci-layout": b"", "index.json": b'{"manifests": [{"digest": "sha512:1"}]}'}), "SHA-256"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)} bytes",
)
def test_damaged_archive_is_refused(tmp_path: Path, data: bytes, text: str) -> None:
    assert text in refusal(archived(tmp_path / "a.tar", data)).message


def test_decompressed_archive_is_limited(tmp_path: Path) -> None:
    bomb = archived(tmp_path / "a.tar.gz", gzip.compress(bytes(10_000_000)))
    with pytest.raises(LimitError, match="1000000"), open_archive(bomb, max_bytes=1_000_000):
        pass
    assert list(tmp_path.iterdir()) == [bomb]


def test_headers_of_any_size_take_no_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 8 * 1024**3
    with (tmp_path / "a.tar").open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(9 * 1024**3)
    assert "headers are too large" in refusal(tmp_path / "a.tar").message


def test_member_beyond_the_end_is_refused(tmp_path: Path) -> None:
    data = tar_of({"manifest.json": b"1" * 100_000})[:5000]
    assert isinstance(refusal(archived(tmp_path / "a.tar", data)), InvalidRequestError)
