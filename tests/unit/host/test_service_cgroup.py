"""The service's control group and score: entered, left without a trace, and not inherited by children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandlot.host.cgroup_layout import Hierarchy, Layout
from sandlot.host.cgroups import detect_layout
from sandlot.host.service_cgroup import OOM_SCORE, PREFIX, moves
from sandlot.model.ids import NodeId, new_node_id

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
from sandlot.host.service_cgroup import leave_service_cgroup, service_cgroup
from sandlot.host.cgroups import detect_layout
def look(pid="self"):
    return {"groups": Path(f"/proc/{pid}/cgroup").read_text(), "score": int(Path(f"/proc/{pid}/oom_score_adj").read_text())}
within = [detect_layout().home("memory") / word.removeprefix("in:") for word in sys.argv if word.startswith("in:")]
for group in within:
    group.mkdir()
    (group / "cgroup.procs").write_text(str(os.getpid()))
told = {"before": look()}
with service_cgroup(detect_layout(), sys.argv[1]) as missing:
    told["missing"], told["during"] = missing, look()
    child = subprocess.Popen(["sleep", "1000"])
    told["child"] = look(child.pid)
    leave_service_cgroup(child.pid)
    told["let_go"] = look(child.pid)
    kept = subprocess.Popen(["sleep", "1000"])
    if "die" in sys.argv:
        print(json.dumps({**told, "children": [child.pid, kept.pid]}), flush=True)
        child.kill(), kept.kill(), child.wait(), kept.wait()
        os.kill(os.getpid(), 9)
told["after"], told["kept"] = look(), look(kept.pid)
child.kill(), kept.kill(), child.wait(), kept.wait()
for group in within:
    (group.parent / "cgroup.procs").write_text(str(os.getpid()))
    group.rmdir()
print(json.dumps(told))
"""


def groups(node: str) -> list[str]:
    return [str(found) for hierarchy in detect_layout().hierarchies for found in hierarchy.mount.glob(f"sandlot/{PREFIX}{node}")]


def may_lower_scores() -> bool:
    """Return whether root may lower scores on this machine; in some containers it may not (CAP_SYS_RESOURCE, capabilities(7), bit 24)."""
    capabilities = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    return bool(int(capabilities.split()[1], 16) >> 24 & 1)


def run(node: str, *words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, node, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


V1 = Layout(
    1,
    (
        Hierarchy(Path("/c/cpu,cpuacct"), frozenset({"cpu", "cpuacct"})),
        Hierarchy(Path("/c/memory"), frozenset({"memory"})),
        Hierarchy(Path("/c/freezer"), frozenset({"freezer"})),
        Hierarchy(Path("/c/systemd"), frozenset()),
    ),
)


def test_service_moves_only_in_useful_hierarchies_of_version_1() -> None:
    found = moves(V1, NodeId("abcd"), "3:memory:/user.slice/x\n2:cpu,cpuacct:/\n1:name=systemd:/user.slice/x\n")
    assert [(str(move.folder), str(move.before)) for move in found] == [
        ("/c/cpu,cpuacct/sandlot/service-abcd", "."),
        ("/c/memory/sandlot/service-abcd", "user.slice/x"),
    ]


def test_service_moves_once_in_version_2() -> None:
    layout = Layout(2, (Hierarchy(Path("/c"), frozenset({"memory", "cpu", "pids"})),))
    assert [(str(move.folder), str(move.before)) for move in moves(layout, NodeId("abcd"), "0::/system.slice/a\n")] == [
        ("/c/sandlot/service-abcd", "system.slice/a")
    ]


def test_service_started_by_another_service_does_not_return_to_its_group() -> None:
    assert str(moves(V1, NodeId("abcd"), "3:memory:/sandlot/service-efgh\n")[1].before) == "."


@pytest.mark.parametrize("group", ["service-web", "system.slice/service-abcd", "sandlot/service-manager"])
def test_service_returns_to_an_operators_group_of_any_name(group: str) -> None:
    assert str(moves(V1, NodeId("abcd"), f"3:memory:/{group}\n")[1].before) == group


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
def test_group_and_score_are_set_during_the_context_and_restored_after_it() -> None:
    node = new_node_id()
    told = run(node)
    assert [what for what in told["missing"] if may_lower_scores() or "score" not in what] == []
    assert f"memory:/sandlot/{PREFIX}{node}\n" in told["during"]["groups"]
    assert told["during"]["score"] == (OOM_SCORE if may_lower_scores() else told["before"]["score"])
    assert told["after"] == told["before"]
    assert groups(node) == []
    # A child that left the group is an ordinary process. A child that stayed has left it at the end.
    assert told["child"] == told["during"]
    assert PREFIX not in told["let_go"]["groups"]
    assert told["let_go"]["score"] >= 0
    assert PREFIX not in told["kept"]["groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
def test_child_that_leaves_is_in_the_former_group_of_the_service() -> None:
    node = new_node_id()
    told = run(node, f"in:service-of-an-operator-{node}")
    assert f":/service-of-an-operator-{node}\n" in told["before"]["groups"]
    assert told["let_go"]["groups"] == told["before"]["groups"] == told["after"]["groups"] == told["kept"]["groups"]
    assert told["during"]["groups"] != told["before"]["groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
def test_group_of_a_killed_service_is_removed_by_any_later_service() -> None:
    node, other = new_node_id(), new_node_id()
    run(node, "die")
    assert groups(node)
    run(node)
    assert groups(node) == []
    run(node, "die")
    run(other)
    assert groups(node) == groups(other) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
def test_group_of_a_killed_service_still_names_the_group_before() -> None:
    node = new_node_id()
    told = run(node, "die")
    before = [os.fsdecode(os.getxattr(group, "trusted.sandlot.before")) for group in groups(node)]
    run(node)  # which removes the groups
    assert before
    assert all(f":/{group.removeprefix('.')}\n" in told["before"]["groups"] for group in before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may")
def test_missing_rights_are_reported() -> None:
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from sandlot.host.service_cgroup import service_cgroup\nfrom sandlot.host.cgroups import detect_layout\n"
        "layout = detect_layout()\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\n"
        "with service_cgroup(layout, 'zzzz') as missing:\n    print(*missing, sep='\\n')\n"
        "with service_cgroup(None, 'zzzz') as missing:\n    print(*missing, sep='\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(ROOT / "src")], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "an out-of-memory score" in done.stdout
    assert "the control group /sys/fs/cgroup" in done.stdout
    assert "the host has no control groups" in done.stdout
