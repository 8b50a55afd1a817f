"""Finding crun and calling it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.drivers.oci.container.runtime import Crun, find_crun
from sandlot.drivers.oci.runtime import Program
from sandlot.model.errors import HostError


def crun(folder: Path, version: str) -> Path:
    """A program that answers as crun does."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "crun"
    program.write_text(f"#!/bin/sh\necho '{version}'\necho 'commit: 0'\n")
    program.chmod(0o755)
    return program


def test_newest_program_on_path_is_used(tmp_path: Path) -> None:
    crun(tmp_path / "a", "crun version 1.9.2")
    newest = crun(tmp_path / "b", "crun version 1.21")
    crun(tmp_path / "c", "crun version 1.14.3")
    found = find_crun(":".join(str(tmp_path / name) for name in "abc"))
    assert (found.path, found.version, found.name, found.limits_disk) == (newest, "1.21", "crun", False)


@pytest.mark.parametrize("version", [None, "crun version 0.17", "crun version 1.7.9", "something else"])
def test_missing_or_old_runtime_is_refused_with_a_fix(tmp_path: Path, version: str | None) -> None:
    if version is not None:
        crun(tmp_path, version)
    with pytest.raises(HostError) as refused:
        find_crun(str(tmp_path))
    assert "apt-get install crun" in refused.value.hint


def test_crun_leaves_control_groups_alone_and_keeps_its_state_in_the_folder_of_the_sandbox() -> None:
    argv = Crun().run_argv(Program("crun", Path("/usr/bin/crun"), "00", "1.8.1"), "ab27-aaaaaaaaaaaaaaaa", 64 << 20)
    assert argv[0] == "/usr/bin/crun"
    assert argv[-1] == "ab27-aaaaaaaaaaaaaaaa"
    assert argv.index("run") > max(argv.index(word) for word in ("--cgroup-manager=disabled", "--root=/run/sandlot/instance/runtime"))
    assert [word for word in argv if any(bad in word for bad in ("debug", "systemd", "no-pivot", "preserve-fds", "no-new-keyring"))] == []
