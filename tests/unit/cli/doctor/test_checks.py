"""What is required of a machine follows from what its operator allows; drivers, images and services into findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandlot.cli.doctor import checks
from sandlot.cli.doctor.checks import Report, check_driver, check_images, settle
from sandlot.host.checks.finding import Finding
from sandlot.host.free_space import FreeSpace
from sandlot.images import build, recipe, recipe_files
from sandlot.images.artifact_cache import ArtifactCache
from sandlot.model.ports import Capabilities, DriverCapability, ProbeResult, RuntimeInfo
from sandlot.server.settings import Settings

YES = ProbeResult(ok=True)
ALL = dict.fromkeys(DriverCapability, YES)
RUNSC = RuntimeInfo("runsc", "1")


def finding(name: str, *, ok: bool | None, group: str = "kernel", **facts: object) -> Finding:
    return Finding(name, ok=ok, detail="found", group=group, facts=facts)


def required(found: list[Finding]) -> set[str]:
    return {each.name for each in found if each.required}


def test_what_is_required_is_what_the_default_needs(subtests: pytest.Subtests) -> None:
    for default, needs in (
        ("gvisor", {"gvisor", "cgroups"}),
        ("container", {"container", "cgroups", "shared-roots"}),
        ("microvm", {"microvm"}),
    ):
        with subtests.test(default=default, needs=needs):
            found = [finding("cgroups", ok=False), finding("shared-roots", ok=False)]
            found += [finding(name, ok=False, group="isolation") for name in ("gvisor", "container", "microvm")]
            assert required(settle(found, default, (default,))) == needs


def test_a_part_that_looks_bad_while_its_driver_works_does_not_decide() -> None:
    found = settle(
        [finding("loop-devices", ok=False), finding("cgroups", ok=True), finding("gvisor", ok=True, group="isolation")], "gvisor", ("gvisor",)
    )
    assert required(found) == {"cgroups", "gvisor"}
    assert Report(tuple(found)).can_run


def test_an_isolation_that_is_only_allowed_does_not_decide_and_is_told_as_that() -> None:
    found = settle(
        [finding(name, ok=name == "gvisor", group="isolation") for name in ("gvisor", "container", "other")], "gvisor", ("gvisor", "container")
    )
    assert Report(tuple(found)).can_run
    assert [each.detail for each in found] == ["found; the default", "found; allowed", "found; not allowed by SANDLOT_ISOLATION_ALLOWED"]
    assert [each.facts["allowed"] for each in found] == [True, True, False]


def test_a_driver_is_judged_by_what_every_sandbox_needs() -> None:
    can_run = check_driver(Capabilities("gvisor", RUNSC, {**ALL, DriverCapability.PAUSE: ProbeResult(ok=False, reason="no freezer")}))
    assert can_run.ok
    assert [(part.name, part.detail) for part in can_run.parts if not part.ok] == [("pause", "no freezer")]
    unable = check_driver(
        Capabilities("gvisor", None, {**ALL, DriverCapability.BOOT: ProbeResult(ok=False, reason="no runsc. `sandlot doctor` says what is missing.")})
    )
    assert (unable.ok, unable.fix, unable.detail) == (False, "no runsc.", "no runtime")
    assert not check_driver(Capabilities("gvisor", RUNSC, {**ALL, DriverCapability.LIMIT_DISK: ProbeResult(ok=False, reason="no disk")})).ok


def test_images_are_there_or_can_be_made(subtests: pytest.Subtests) -> None:
    for built, builder, ok, is_required in (
        (["a", "b"], False, True, True),
        ([], True, True, True),
        (["a"], True, True, False),
        ([], False, False, True),
        (["a"], False, False, False),
    ):
        with subtests.test(built=built, builder=builder, ok=ok, is_required=is_required):
            found = check_images(built, ["a", "b"], builder=builder)
            assert found.ok is ok
            assert Report((found,)).can_run == (ok or not is_required)
            assert bool(found.fix) is not ok


def test_images_are_those_of_the_recipes_and_aliases_of_the_settings(tmp_path: Path) -> None:
    key = recipe.image_key(recipe.lineage(recipe_files.shipped(), "base"), build.architecture())

    def fill(folder: Path, _lock: int) -> None:
        (folder / build.MANIFEST).write_text(json.dumps({"digest": "d", "size_bytes": 1, "files": 1}))

    ArtifactCache(tmp_path, "images", FreeSpace(tmp_path)).ensure(key, fill, lambda: None)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.toml").write_text('from = "base"')
    env = {
        "SANDLOT_CACHE_DIR": str(tmp_path),
        "SANDLOT_DATA_DIR": str(tmp_path),
        "SANDLOT_RECIPES_DIR": str(tmp_path / "recipes"),
        "SANDLOT_TEMPLATE_ALIASES": "code-interpreter=base,small=base",
    }
    (check,) = [each for each in checks._checks(Settings.load(env)) if each.task.name == "images"]  # noqa: SLF001 - the others take seconds
    (found,) = checks.inspect_images(**json.loads(json.dumps(check.task.keywords)))
    assert found["facts"]["built"] == ["base", "code-interpreter", "small"]
    assert {"mine", "claude"} <= {part["name"] for part in found["parts"]}


def test_what_a_killed_doctor_left_is_swept_and_what_a_living_one_uses_is_not(tmp_path: Path) -> None:
    stray, theirs = tmp_path / ".sandlot-doctor-gvisor.aaaa", tmp_path / "something-else"
    for folder in (stray, theirs):
        folder.mkdir()
    with checks._folder(tmp_path, "gvisor", "bbbb") as used:  # noqa: SLF001 - no other process shall have to be killed for it
        checks._sweep_strays(tmp_path)  # noqa: SLF001
        assert sorted(tmp_path.iterdir()) == sorted([used, theirs])
    assert list(tmp_path.iterdir()) == [theirs]
