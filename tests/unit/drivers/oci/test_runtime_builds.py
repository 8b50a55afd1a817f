"""Builds of a runtime: the installed one is copied by content, and copies are verified."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.runtime import Program
from sandlot.drivers.oci.runtime_builds import RuntimeBuilds
from sandlot.host.programs import content_sha256
from sandlot.model.errors import HostError


def installed(file: Path) -> Callable[[], Program]:
    return lambda: Program("runsc", file, content_sha256(file), file.read_text(), has_control=True)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    file = tmp_path / "installed"
    file.write_text("one")
    return file


def kept_builds(tmp_path: Path) -> set[str]:
    return {entry.name for entry in (tmp_path / "runtimes").iterdir()} - {".new"}


def test_installed_build_is_copied_once_and_runs_from_its_copy(package: Path, tmp_path: Path) -> None:
    builds = RuntimeBuilds(Runsc(installed(package)), tmp_path / "runtimes")
    newest, current = builds.installed(), builds.current()
    assert newest.path == package
    assert current == dataclasses.replace(newest, path=tmp_path / "runtimes" / newest.sha256 / "runsc")
    assert current.path.read_text() == "one"
    assert current.path.stat().st_mode & 0o777 == 0o755
    before = current.path.stat()
    assert builds.current() is current
    assert RuntimeBuilds(Runsc(installed(package)), tmp_path / "runtimes").current() == current
    assert current.path.stat() == before
    assert kept_builds(tmp_path) == {newest.sha256}


def test_upgrade_is_noticed_and_the_former_build_is_kept_while_it_is_needed(package: Path, tmp_path: Path) -> None:
    builds = RuntimeBuilds(Runsc(installed(package)), tmp_path / "runtimes")
    one = builds.current()
    package.with_name("new").write_text("two")
    package.with_name("new").rename(package)
    two = builds.current()
    assert (one.version, two.version) == ("one", "two")
    assert builds.get(one.sha256) == one
    left = tmp_path / "runtimes" / ".new" / "left-by-a-killed-service"
    left.mkdir()
    builds.prune({one.sha256})
    assert not left.exists()
    assert kept_builds(tmp_path) == {one.sha256, two.sha256}
    builds.prune(())
    assert builds.unusable_reason(two.sha256) == ""
    assert kept_builds(tmp_path) == {two.sha256}
    assert "not kept" in builds.unusable_reason(one.sha256)
    with pytest.raises(HostError, match="not kept"):
        builds.get(one.sha256)


@pytest.mark.parametrize("harm", ["altered", "facts", "gone"])
def test_altered_copy_is_not_run_and_is_replaced_if_the_build_is_installed(harm: str, package: Path, tmp_path: Path) -> None:
    one = RuntimeBuilds(Runsc(installed(package)), tmp_path / "runtimes").current()
    if harm == "altered":
        one.path.write_text("another")
    elif harm == "facts":
        (one.path.parent / "program.json").write_text("{")
    else:
        one.path.unlink()
    another = tmp_path / "another"
    another.write_text("two")
    builds = RuntimeBuilds(Runsc(installed(another)), tmp_path / "runtimes")
    assert builds.unusable_reason(one.sha256)
    with pytest.raises(HostError):
        builds.get(one.sha256)
    # If the build is still installed, it is copied again.
    assert RuntimeBuilds(Runsc(installed(package)), tmp_path / "runtimes").get(one.sha256) == one
    assert builds.get(one.sha256).path.read_text() == "one"


def test_runtime_without_snapshots_is_not_copied(package: Path, tmp_path: Path) -> None:
    builds = RuntimeBuilds(Crun(installed(package)), tmp_path / "runtimes")
    assert builds.current().path == package
    assert not (tmp_path / "runtimes").exists()


def test_folder_that_cannot_be_written_raises_a_host_error(package: Path, tmp_path: Path) -> None:
    (tmp_path / "runtimes").write_text("in the way")
    with pytest.raises(HostError, match="could not be copied") as refused:
        RuntimeBuilds(Runsc(installed(package)), tmp_path / "runtimes").current()
    assert "SANDLOT_DATA_DIR" in refused.value.hint
