"""Finding runsc and calling it."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from sandlot.drivers.oci.gvisor import runtime
from sandlot.drivers.oci.gvisor.runtime import MIN_RELEASE, Runsc, find_runsc, release_date
from sandlot.drivers.oci.runtime import Program
from sandlot.host.launcher import Started
from sandlot.host.process_identity import identify
from sandlot.model.errors import HostError
from sandlot.model.ports import ProbeResult
from sandlot.model.specs import MIB, Limits, RootFs, Shape

LIMITS = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)


def runsc(folder: Path, version: str, *, limits_disk: bool = False, code: int = 0) -> Path:
    """A program that answers as runsc does."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "runsc"
    refuse = "" if limits_disk else 'case "$1" in --overlay2=*size=*) echo "invalid value" >&2; exit 2;; esac\n'
    program.write_text(f"#!/bin/sh\n{refuse}echo 'runsc version {version}'\necho 'spec: 1.1.0'\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    "version, date",
    [("0.0~20240729.0", 20240729), ("release-20260817.0", 20260817), ("release-20260817.0-70-gabcdef", 20260817), ("VERSION_MISSING", 0), ("", 0)],
)
def test_date_of_a_version_is_parsed(version: str, date: int) -> None:
    assert release_date(version) == date


def test_newest_program_on_path_is_used(tmp_path: Path) -> None:
    runsc(tmp_path / "a", "0.0~20240729.0")
    newest = runsc(tmp_path / "b", "release-20260817.0", limits_disk=True)
    runsc(tmp_path / "c", "release-20250101.0")
    runsc(tmp_path / "d", "release-20270101.0", code=1)
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "runsc").write_text("not executable")
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "runsc").symlink_to(newest)
    found = find_runsc(":".join(str(tmp_path / name) for name in "abcdefg"))
    assert found.path == newest
    assert found.version == "release-20260817.0"
    assert found.limits_disk
    assert len(found.sha256) == 64
    assert found.sha256 != find_runsc(str(tmp_path / "a")).sha256
    assert not find_runsc(str(tmp_path / "a")).limits_disk


@pytest.mark.parametrize("version", [None, "0.0~20221219.0", "VERSION_MISSING"])
def test_missing_or_old_runtime_is_refused_with_a_fix(tmp_path: Path, version: str | None) -> None:
    if version is not None:
        runsc(tmp_path, version)
    with pytest.raises(HostError) as refused:
        find_runsc(str(tmp_path))
    assert "bookworm-backports" in refused.value.hint
    assert version is None or str(MIN_RELEASE) in refused.value.message


@pytest.mark.parametrize("limits_disk", [True, False])
def test_no_flag_weakens_the_boundary(limits_disk: bool) -> None:  # noqa: FBT001
    program = Program("runsc", Path("/usr/bin/runsc"), "00", "x", limits_disk=limits_disk)
    argv = Runsc().run_argv(program, "ab27-aaaaaaaaaaaaaaaa", 64 << 20)
    assert argv[0] == "/run/sandlot/program/runsc"
    assert argv[-1] == "ab27-aaaaaaaaaaaaaaaa"
    assert {"--platform=systrap", "--network=none", "--directfs=false", "--host-uds=none", "--host-fifo=none"} <= set(argv)
    assert [
        word for word in argv if any(bad in word for bad in ("debug", "strace", "ignore-cgroups", "net-raw", "TESTONLY", "allow-flag-override"))
    ] == []
    overlay = "--overlay2=root:dir=/run/sandlot/disk" + (",size=67108864" if limits_disk else "")
    assert overlay in argv
    assert argv.index("run") > max(argv.index(word) for word in argv if word.startswith("--"))


def test_kernel_of_a_sandbox_is_the_first_that_the_host_kills_for_memory() -> None:
    process = subprocess.Popen(["sleep", "600"])
    try:
        kernel = identify(process.pid)
        assert kernel is not None
        Runsc().after_start(Started(sandbox=kernel, keeper=kernel))
        assert Path(f"/proc/{process.pid}/oom_score_adj").read_text() == "1000\n"
    finally:
        process.kill()
        process.wait()


def test_card_needs_a_tested_control_socket_or_a_network_that_runsc_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = {"is_copied": "This host cannot create a network card."}
    monkeypatch.setattr(runtime, "find_card_problem", lambda *, is_copied: problems["is_copied"] if is_copied else pytest.fail("needs no device"))
    program = Program("runsc", Path("/usr/bin/runsc"), "0" * 64, "release-20270101.0")
    found = Runsc().probe_card(program)
    assert not found.ok
    assert program.version in found.reason
    assert not Runsc().boots_with_engine(program)

    tested = dataclasses.replace(program, has_control=True)
    assert Runsc().probe_card(tested) == ProbeResult(ok=True)
    assert Runsc().boots_with_engine(tested)

    copying = dataclasses.replace(program, copies_network=True)
    assert Runsc().probe_card(copying) == ProbeResult(ok=False, reason=problems["is_copied"])
    problems["is_copied"] = ""
    assert Runsc().probe_card(copying) == ProbeResult(ok=True, reason=runtime.COPIED_NOTE)
    assert not Runsc().boots_with_engine(copying)


@pytest.mark.parametrize("flag, copies", [("--nothing", True), ("--network=sandbox", False)])
def test_network_is_copied_by_releases_that_accept_the_flags_and_have_no_tested_control_socket(
    tmp_path: Path,
    flag: str,
    copies: bool,  # noqa: FBT001 - a case
) -> None:
    file = runsc(tmp_path, "release-20270101.0")
    text = file.read_text()
    file.write_text(text.replace("\n", f'\ncase "$*" in *{flag}*) exit 2;; esac\n', 1))
    found = find_runsc(str(tmp_path))
    assert (found.has_control, found.copies_network) == (False, copies)

    found = find_runsc(str(tmp_path), control_releases=(20270101,))
    assert (found.has_control, found.copies_network) == (True, False)


def test_network_is_that_of_the_stage_only_if_runsc_copies_it() -> None:
    program = Program("runsc", Path("/usr/bin/runsc"), "00", "x", copies_network=True)
    argv, shape = Runsc().create_argv(program, "ab27-aaaaaaaaaaaaaaaa", 64 << 20), Shape(RootFs("x", Path("/cache/tree")), LIMITS)
    assert {"--network=sandbox", "--reproduce-nat"} <= set(argv)
    assert "--network=none" not in argv
    (network,) = (each for each in Runsc().config(program, shape, None, None, has_card=True)["linux"]["namespaces"] if each["type"] == "network")
    assert network["path"] == "/proc/self/ns/net", "without a path, runsc could run in the host's namespace"
