"""Control groups: the real ones of this host, and version 2 on a folder that looks like one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from sandlot.host.cgroup_layout import GroupLimits, Hierarchy, Layout
from sandlot.host.cgroups import Cgroup, GroupMemory, detect_layout, group_names
from sandlot.model.errors import ConflictError, HostError
from sandlot.model.ids import new_node_id

ENTER = "import os, sys\nfor door in sys.argv[1:]: open(door, 'w').write('0')\nprint('in', flush=True)"
LIMITS = GroupLimits(memory_bytes=128 << 20, cpus=0.5, pids=50)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    node = new_node_id()
    made = Cgroup(detect_layout(), PurePosixPath(f"/sandlot/{node}/{node}-aaaabbbbccccdddd"))
    yield made
    for _ in range(200):
        if not made.kill_once() and made.remove():
            break
        time.sleep(0.01)
    assert not made.exists()
    assert not any(folder.parent.exists() for folder in made.folders), "empty parents go as well"


@pytest.fixture
def process(group: Cgroup) -> Iterator[subprocess.Popen[bytes]]:
    group.create(LIMITS)
    started = subprocess.Popen(["python3", "-c", f"{ENTER}\nwhile True: pass", *map(str, group.entry_files)], stdout=subprocess.PIPE)
    assert started.stdout is not None
    assert started.stdout.read(3) == b"in\n"
    yield started
    started.kill()
    started.communicate()


def test_group_is_created_in_every_hierarchy_limited_and_removed(group: Cgroup) -> None:
    assert not group.exists()
    group.create(LIMITS)
    assert all(folder.is_dir() for folder in group.folders)
    assert group.name.name in group_names(detect_layout(), group.name.parent)
    assert _values(group, "memory.limit_in_bytes", "memory.max") == [str(LIMITS.memory_bytes)]
    assert _values(group, "pids.max") == ["50"]
    assert _values(group, "cpu.cfs_quota_us", "cpu.max")[0].split(" ")[0] == "50000"
    assert group.usage().pids == 0
    assert group.kill_once() == 0
    assert group.remove()
    assert group.remove()
    assert group.oom_kills() == 0
    assert group.pids() == set()
    with pytest.raises(FileNotFoundError):
        group.usage()
    group.thaw()


def _values(group: Cgroup, *files: str) -> list[str]:
    return [(folder / file).read_text().strip() for folder in group.folders for file in files if (folder / file).exists()]


def test_process_in_a_group_is_counted_frozen_and_killed(group: Cgroup, process: subprocess.Popen[bytes]) -> None:
    assert group.pids() == {process.pid}
    assert not group.remove()
    group.freeze()
    while not group.is_frozen():
        time.sleep(0.001)
    used = group.usage()
    assert used.pids == 1
    assert used.memory_bytes > 0
    time.sleep(0.2)
    assert group.usage().cpu_s == used.cpu_s
    # Frozen as it is: killing thaws.
    assert group.kill_once() == 1
    assert process.wait() == -signal.SIGKILL
    while group.kill_once():
        time.sleep(0.001)


def test_fork_bomb_cannot_escape_a_kill(group: Cgroup) -> None:
    group.create(GroupLimits(memory_bytes=128 << 20, cpus=1, pids=1000))
    forks = f"{ENTER}\nwhile True:\n  try: os.fork()\n  except OSError: pass"
    bomb = subprocess.Popen(["python3", "-c", forks, *map(str, group.entry_files)], stdout=subprocess.PIPE)
    assert bomb.stdout is not None
    bomb.stdout.read(3)
    while group.usage().pids < 20:
        time.sleep(0.001)
    while group.kill_once():
        time.sleep(0.001)
    bomb.communicate()
    assert group.pids() == set()


def _all_limits(group: Cgroup) -> list[str]:
    return _values(group, *("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "cpu.cfs_quota_us", "pids.max", "memory.max", "cpu.max"))


def test_failed_change_is_undone(group: Cgroup, tmp_path: Path) -> None:
    group.create(LIMITS)
    before = _all_limits(group)
    # Raised: memory comes last, and here it is no number that the kernel takes.
    with pytest.raises(HostError, match=group.name.name):
        group.change(GroupLimits(memory_bytes=1 << 80, cpus=2, pids=99))
    assert _all_limits(group) == before
    gone = Cgroup(Layout(1, (Hierarchy(tmp_path, frozenset({"memory", "cpu", "pids", "freezer"})),)), group.name)
    with pytest.raises(FileNotFoundError):
        gone.change(LIMITS)


def test_limit_is_lowered_to_the_memory_in_use_and_never_raised(group: Cgroup) -> None:
    group.create(GroupLimits(memory_bytes=256 << 20, cpus=1, pids=50))
    holds = f"{ENTER}\nheld = bytearray(b'x' * (100 << 20))\nprint('ok', flush=True)\nsys.stdin.read()"
    holder = subprocess.Popen(["python3", "-c", holds, *map(str, group.entry_files)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.read(6) == b"in\nok\n"
    assert group.memory().anonymous_bytes > 100 << 20
    first = group.lower_memory(64 << 20, 16 << 20)
    assert group.charged_bytes() < first < 160 << 20
    assert first == group.memory_limit()
    assert group.lower_memory(64 << 20, 64 << 20) == first
    assert holder.poll() is None
    holder.communicate()
    while group.charged_bytes() > 64 << 20:
        time.sleep(0.001)
    assert group.lower_memory(64 << 20, 16 << 20) == 64 << 20


def test_groups_of_one_parent_are_created_and_removed_concurrently() -> None:
    layout, node = detect_layout(), new_node_id()
    names = [PurePosixPath(f"/sandlot/{node}/{node}-{letter * 16}") for letter in "abcd"]
    children = []
    for name in names:
        if (pid := os.fork()) == 0:
            try:
                for _ in range(30):
                    Cgroup(layout, name).create(LIMITS)
                    Cgroup(layout, name).remove()
            except BaseException:  # noqa: BLE001 - this is a forked test
                os._exit(1)
            os._exit(0)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * len(names)
    assert group_names(layout, PurePosixPath(f"/sandlot/{node}")) == set()


def test_groups_of_version_1_are_entered_through_tasks() -> None:
    """A process that is moved by ``cgroup.procs`` waits for a lock over all processes of the host."""
    layout = Layout(1, (Hierarchy(Path("/c/memory"), frozenset({"memory"})), Hierarchy(Path("/c/pids"), frozenset({"pids"}))))
    assert [str(file) for file in Cgroup(layout, PurePosixPath("/sandlot/x")).entry_files] == ["/c/memory/sandlot/x/tasks", "/c/pids/sandlot/x/tasks"]


def test_refused_group_raises_an_error_with_a_hint(tmp_path: Path) -> None:
    layout = Layout(1, (Hierarchy(tmp_path / "not-there", frozenset({"memory", "cpu", "pids", "freezer"})),))
    with pytest.raises(HostError) as refused:
        Cgroup(layout, PurePosixPath("/sandlot/x/y")).create(LIMITS)
    assert "/sandlot/x/y" in refused.value.message
    assert "doctor" in refused.value.hint


class TestVersion2:
    """The files that version 2 is driven by; a host that has it runs the tests above on it as well."""

    @pytest.fixture
    def leaf(self, tmp_path: Path) -> Path:
        leaf = tmp_path / "sandlot" / "abcd" / "abcd-x"
        leaf.mkdir(parents=True)
        files = {
            "memory.max": "max",
            "cpu.max": "max 100000",
            "pids.max": "max",
            "cgroup.procs": "0\n",
            "cgroup.freeze": "0",
            "cgroup.kill": "",
            "cgroup.events": "populated 0\nfrozen 0\n",
            "memory.events": "low 0\noom 2\noom_kill 1\n",
            "memory.stat": "anon 5\ninactive_file 1000\n",
            "memory.current": "5000\n",
            "memory.peak": "9000\n",
            "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
            "pids.current": "7\n",
        }
        for name, text in files.items():
            (leaf / name).write_text(text)
        return leaf

    @pytest.fixture
    def group(self, tmp_path: Path, leaf: Path) -> Cgroup:
        assert leaf.is_dir()
        return Cgroup(Layout(2, (Hierarchy(tmp_path, frozenset({"memory", "cpu", "pids"})),)), PurePosixPath("/sandlot/abcd/abcd-x"))

    def test_limits_and_delegation(self, group: Cgroup, leaf: Path) -> None:
        group.create(LIMITS)
        assert (leaf / "memory.max").read_text().startswith("134217728")
        assert (leaf / "cpu.max").read_text().startswith("50000 100000")
        assert (leaf / "pids.max").read_text().startswith("50")
        assert not (leaf / "memory.swap.max").exists(), "a kernel without swap accounting is no error"
        for parent in (leaf.parent, leaf.parent.parent, leaf.parent.parent.parent):
            assert (parent / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
        assert not (leaf / "cgroup.subtree_control").exists(), "a group with processes delegates nothing"
        assert group.entry_files == (leaf / "cgroup.procs",)

    def test_lower_memory_limit_is_tried_before_it_is_set(self, group: Cgroup, leaf: Path) -> None:
        group.create(GroupLimits(memory_bytes=134217728, cpus=0.5, pids=50))
        (leaf / "memory.max").write_text("134217728\n")
        (leaf / "memory.high").write_text("max      \n")
        (leaf / "memory.current").write_text("100000000\n")
        with pytest.raises(ConflictError):
            group.change(GroupLimits(memory_bytes=99999744, cpus=0.5, pids=50))
        assert (leaf / "memory.max").read_text() == "134217728\n"
        assert (leaf / "memory.high").read_text().startswith("max")
        group.change(GroupLimits(memory_bytes=100003840, cpus=0.7, pids=60))
        assert (leaf / "memory.max").read_text() == "100003840\n"
        assert (leaf / "memory.high").read_text().startswith("max")
        assert (leaf / "cpu.max").read_text().startswith("70000 100000")

    def test_limit_follows_what_the_kernel_reclaims(self, group: Cgroup, leaf: Path) -> None:
        (leaf / "memory.max").write_text("900000000")
        (leaf / "memory.high").write_text("max      ")
        (leaf / "memory.current").write_text("700000000")
        assert group.lower_memory(500000000, 100) == 700000100
        assert (leaf / "memory.high").read_text() == "500000000", "the kernel reclaims while the group runs"
        (leaf / "memory.current").write_text("800000000")
        assert group.lower_memory(500000000, 100) == 700000100
        (leaf / "memory.current").write_text("500000000")
        assert group.lower_memory(500000000, 100) == 500000000
        assert (leaf / "memory.high").read_text().startswith("max")

    def test_change_can_leave_the_memory_as_it_is(self, group: Cgroup, leaf: Path) -> None:
        (leaf / "memory.max").write_text("900000000")
        (leaf / "memory.high").write_text("500000000")
        group.change(GroupLimits(memory_bytes=500000000, cpus=0.7, pids=60), keep_memory=True)
        assert (leaf / "memory.max").read_text() == "900000000"
        assert (leaf / "memory.high").read_text() == "500000000"
        assert (leaf / "cpu.max").read_text().startswith("70000 100000")

    def test_memory_by_kind(self, group: Cgroup) -> None:
        assert group.memory() == GroupMemory(charged_bytes=5000, anonymous_bytes=5, shared_bytes=0)

    def test_usage_and_kills(self, group: Cgroup, leaf: Path) -> None:
        used = group.usage()
        assert (used.cpu_s, used.memory_bytes, used.memory_peak_bytes, used.pids) == (1.5, 4000, 9000, 7)
        (leaf / "memory.peak").unlink()
        assert group.usage().memory_peak_bytes == 0
        assert group.oom_kills() == 1

    def test_freezing_and_killing(self, group: Cgroup, leaf: Path) -> None:
        group.freeze()
        assert (leaf / "cgroup.freeze").read_text() == "1"
        assert not group.is_frozen()
        (leaf / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        assert group.is_frozen()
        assert group.kill_once() == 0
        assert (leaf / "cgroup.freeze").read_text() == "0"
        assert (leaf / "cgroup.kill").read_text() == "1"
        assert (leaf / "pids.max").read_text().startswith("0")
