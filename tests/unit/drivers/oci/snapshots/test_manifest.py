"""Manifests: they are read as they were written, and refuse sandboxes that do not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.drivers.oci.snapshots.manifest import NAME, Manifest, load, read
from sandlot.model.specs import MIB, Limits, RootFs, RootKind, Shape

LIMITS = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
SHAPE = Shape(RootFs("root", Path("/cache/tree")), LIMITS)
IMAGE = RootFs("root", image=Path("/cache/image"), index=Path("/cache/index"))
MANIFEST = Manifest("gvisor", "runsc", "a" * 64, "0.0~20240729.0", "root", LIMITS, {"checkpoint.img": 10, "pages.img": 20})


def test_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert load(MANIFEST.dump()) == MANIFEST
    (tmp_path / NAME).write_text(MANIFEST.dump())
    assert read(tmp_path) == MANIFEST


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"version": 2}', MANIFEST.dump()[:-20], MANIFEST.dump().replace('"cpus": 1.0', '"cpus": -1')]
)
def test_invalid_manifest_is_none(text: str, tmp_path: Path) -> None:
    assert load(text) is None
    (tmp_path / NAME).write_text(text)
    assert read(tmp_path) is None


def test_snapshot_of_an_image_fits_the_image_and_not_a_folder_with_its_digest() -> None:
    of_image = replace(MANIFEST, root_kind=RootKind.IMAGE)
    assert load(of_image.dump()) == of_image
    assert of_image.misfit(replace(SHAPE, root=IMAGE), "gvisor", "a" * 64) == ""
    assert "kind image, but that of this sandbox is of kind tree" in of_image.misfit(SHAPE, "gvisor", "a" * 64)


def test_manifest_of_an_earlier_version_is_that_of_a_folder() -> None:
    assert load(MANIFEST.dump().replace('"root_kind": "tree"', '"runtime": "runsc"')) == MANIFEST


@pytest.mark.parametrize(
    "shape, driver, runtime, why",
    [
        (SHAPE, "other", "a" * 64, "the gvisor driver"),
        (SHAPE, "gvisor", "b" * 64, "another build of runsc (0.0~20240729.0, aaaaaaaaaaaa), but this sandbox uses build bbbbbbbbbbbb"),
        (replace(SHAPE, root=RootFs("another", Path("/cache/tree"))), "gvisor", "a" * 64, "root file system root, but this sandbox has another"),
        (replace(SHAPE, root=IMAGE), "gvisor", "a" * 64, "a root file system of kind tree, but that of this sandbox is of kind image"),
        (replace(SHAPE, limits=replace(LIMITS, memory_bytes=255 * MIB)), "gvisor", "a" * 64, "256 MiB of memory, but this sandbox has 255 MiB"),
        (replace(SHAPE, limits=replace(LIMITS, disk_bytes=63 * MIB)), "gvisor", "a" * 64, "64 MiB of disk, but this sandbox has 63 MiB"),
    ],
)
def test_reason_of_a_misfit_is_named(shape: Shape, driver: str, runtime: str, why: str) -> None:
    assert why in MANIFEST.misfit(shape, driver, runtime)
