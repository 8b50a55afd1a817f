"""``sandlot doctor`` on this machine, and on this machine with something taken away: it names the problem, decides, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from sandlot.cli.doctor import checks
from sandlot.host import disk_images
from sandlot.host.cgroups import detect_layout, group_names
from tests.meta.tree import ROOT
from tests.support.environ import clean_environ
from tests.support.traces import settle

pytestmark = pytest.mark.slow

DOCTOR = (sys.executable, "-m", "sandlot.cli", "doctor")


def environment(data_dir: Path, **more: str) -> dict[str, str]:
    own = clean_environ()
    return {**own, "SANDLOT_DATA_DIR": str(data_dir), **more}


def look(
    data_dir: Path, *, within: str = "", user: int | None = None, code: int | None = None, env: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The doctor's JSON and its checks by name.

    Args:
        data_dir: The state directory.
        within: A line of shell that makes the machine poorer, in a mount namespace of its own.
        user: Who asks, if not root.
        code: The exit status that it must have.
        env: Further settings.
    """
    argv = [*DOCTOR, "--json"]
    if user is not None:
        argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *argv]
    if within:
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{within}; exec "$@"', "sh", *argv]
    done = subprocess.run(argv, capture_output=True, env=environment(data_dir, **(env or {})), cwd="/", check=False)
    assert done.stderr == b""
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["ok"] else 1)
    if code is not None:
        assert done.returncode == code, [check for check in told["checks"] if not check["ok"]]
    for check in told["checks"]:
        assert check["ok"] is not False or check["fix"], check
    return told, {check["name"]: check for check in told["checks"]}


def traces(data_dir: Path) -> dict[str, object]:
    """What a doctor for this state directory could leave on the machine."""
    layout = detect_layout()
    processes = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _mentions(path, str(data_dir))]
    return {
        "processes": processes,
        "loops": disk_images.loops_below(data_dir),
        "groups": {name for name in group_names(layout, PurePosixPath("/sandlot")) if _is_stray(name)},
        "files": sorted(path.name for path in data_dir.iterdir()) if data_dir.exists() else None,
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines() if str(data_dir) in line],
    }


def _mentions(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


def _is_stray(name: str) -> bool:
    return name.startswith("doctor-") and not Path("/proc", name.removeprefix("doctor-")).exists()


NOTHING: dict[str, object] = {"processes": [], "loops": {}, "groups": set(), "files": [], "mounts": []}


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    return folder


def test_doctor_after_a_killed_run_succeeds_and_leaves_nothing(data_dir: Path) -> None:
    doctor = started(data_dir)
    doctor.kill()
    doctor.communicate()
    # A sandbox that ran by then outlives it; now and then there was none yet.
    told, checks = look(data_dir, env={"SANDLOT_ISOLATION_ALLOWED": "gvisor,container"}, code=0)
    settle(lambda: traces(data_dir), NOTHING)
    assert told["isolation"] == {"default": "gvisor", "allowed": ["gvisor", "container"]}
    assert [name for name, check in checks.items() if check["required"] and not check["ok"]] == []
    for isolation, runtime in (("gvisor", "runsc"), ("container", "crun")):
        assert checks[isolation]["facts"]["runtime"]["name"] == runtime
        assert {"name": "boot", "ok": True, "detail": ""} in checks[isolation]["parts"]
    page = (ROOT / "docs" / "reference" / "doctor.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \| ([a-z ]+) \| [^|]+ \|$", page, re.MULTILINE)
    documented = {name: group for names, group in rows for name in re.findall(r"`([^`]+)`", names)}
    assert documented == {name: check["group"] for name, check in checks.items()}


def test_unprivileged_user_is_told_what_to_do(data_dir: Path) -> None:
    _, checks = look(data_dir, user=65534, code=1, env={"HOME": "/nonexistent", "TMPDIR": "/tmp"})
    assert checks["user"]["ok"] is False
    assert "sudo" in checks["user"]["fix"]
    assert checks["gvisor"]["ok"] is None
    assert "runsc" in checks["gvisor"]["detail"]
    assert {name for name, check in checks.items() if check["ok"] is None} >= {"cgroup-delegation", "loop-devices", "shared-roots"}
    assert traces(data_dir) == NOTHING


def test_missing_runtimes_and_invalid_settings_are_named(data_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    _, checks = look(data_dir, env={"PATH": str(tmp_path / "bin"), "SANDLOT_ISOLATION_DEFAULT": "chroot"}, code=1)
    assert "SANDLOT_ISOLATION_DEFAULT is 'chroot'" in checks["settings"]["detail"]
    assert "runsc, is not installed" in checks["gvisor"]["fix"]
    assert "apt-get install crun" in checks["container"]["fix"]
    assert not checks["container"]["required"]


def test_hidden_control_groups_and_a_full_disk_are_named(data_dir: Path) -> None:
    fill = f"mount -t tmpfs -o size=1m,mode=0700 none {data_dir}; head -c 1M /dev/zero > {data_dir}/full || true"
    _, checks = look(data_dir, within=f"mount -t tmpfs none /sys/fs/cgroup; {fill}", code=1)
    assert checks["cgroups"]["ok"] is False
    assert "mounted over this path" in checks["cgroups"]["fix"]
    assert checks["cgroup-delegation"]["ok"] is None
    assert (checks["data-dir"]["ok"], checks["data-dir"]["required"]) == (False, True)
    assert "Free some space" in checks["data-dir"]["fix"]
    assert checks["gvisor"]["ok"] is False
    assert traces(data_dir) == NOTHING


def test_read_only_control_groups_and_data_directory_and_missing_loop_devices_are_named(data_dir: Path) -> None:
    groups = "for folder in $(awk '$3 ~ /^cgroup/ { print $2 }' /proc/self/mounts); do mount -o remount,bind,ro $folder; done"
    others = f"mount --bind /dev/null /dev/loop-control; mount -t tmpfs -o ro,mode=0700 none {data_dir}"
    _, checks = look(data_dir, within=f"{groups}; {others}", code=1)
    assert checks["cgroup-delegation"]["ok"] is False
    assert "docker run --privileged" in checks["cgroup-delegation"]["fix"]
    assert (checks["data-dir"]["ok"], checks["data-dir"]["required"]) == (False, True)
    assert "SANDLOT_DATA_DIR" in checks["data-dir"]["fix"]
    assert [checks[name]["ok"] for name in ("loop-devices", "shared-roots", "gvisor", "container")] == [False] * 4
    assert traces(data_dir) == NOTHING


def test_interrupted_doctor_cleans_up(data_dir: Path) -> None:
    doctor = started(data_dir)
    doctor.send_signal(signal.SIGTERM)
    doctor.communicate()
    assert doctor.returncode != 0
    settle(lambda: traces(data_dir), NOTHING)


def started(data_dir: Path) -> subprocess.Popen[bytes]:
    """A doctor that has begun to boot a sandbox."""
    doctor = subprocess.Popen([*DOCTOR, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(data_dir))
    while not list(data_dir.glob(".sandlot-doctor-*/sandboxes/????-*/bundle/config.json")):
        assert doctor.poll() is None, doctor.communicate()
        time.sleep(0.01)
    return doctor


HANGING_RUNTIME = """#!/bin/sh
case "$*" in *--version*) echo "runsc version release-20990101.0"; exit;; esac
exec sleep 1000
"""


def test_runtime_that_hangs_is_ended_and_reported(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runsc").write_text(HANGING_RUNTIME, encoding="utf-8")
    (tmp_path / "runsc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(checks, "DRIVER_DEADLINE_S", 2.0)
    report = checks.examine(environment(data_dir))
    assert not report.can_run
    gvisor = next(finding for finding in report.findings if finding.name == "gvisor")
    assert "no result within 2 s" in gvisor.detail
    assert "dmesg" in gvisor.fix
    settle(lambda: traces(data_dir), NOTHING)
