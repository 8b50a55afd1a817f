"""Capacity of the machine: parsing of the kernel's files, and readings of this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.host import capacity
from sandlot.host.capacity import Bound, GroupBounds, Host, group_of, held_bytes, max_tasks, own_bounds, used_memory
from sandlot.host.cgroup_layout import Hierarchy, Layout

MEMINFO = "MemTotal:       24684084 kB\nMemFree:        23387756 kB\nMemAvailable:   23939160 kB\nHugePages_Total:       3\n"
V1 = "9:name=systemd:/user.slice\n4:memory:/system.slice/sandlot.service\n2:cpu,cpuacct:/x\n8:pids:/tasks/of:it\n0::/unified.slice\n"


@pytest.mark.parametrize(
    "text, controller, group",
    [
        (V1, "memory", "system.slice/sandlot.service"),
        (V1, "cpuacct", "x"),
        (V1, "pids", "tasks/of:it"),
        (V1, "rdma", "unified.slice"),
        ("0::/a/b\n", "memory", "a/b"),
        ("0::/\n", "pids", "."),
    ],
)
def test_group_of_a_controller_is_found(text: str, controller: str, group: str) -> None:
    assert group_of(text, controller) == Path(group)


def fake_proc(folder: Path, cgroup: str) -> Path:
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(cgroup)
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "sys/kernel/pid_max").write_text("32768\n")
    (proc / "sys/kernel/threads-max").write_text("20000\n")
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "loadavg").write_text("0.57 0.62 1.00 1/132 6997\n")
    return proc


def test_limits_of_parent_groups_count_in_version_2(tmp_path: Path) -> None:
    mount = tmp_path / "cgroup"
    (mount / "a/b").mkdir(parents=True)
    (mount / "a/memory.max").write_text("1000\n")
    (mount / "a/b/memory.max").write_text("2000\n")
    (mount / "a/b/pids.max").write_text("max\n")
    layout = Layout(2, (Hierarchy(mount, frozenset({"memory", "pids"})),))
    assert own_bounds(layout, fake_proc(tmp_path, "0::/a/b\n")) == GroupBounds(memory=(Bound(2000, mount / "a/b"), Bound(1000, mount / "a")))


def test_huge_limit_of_version_1_counts_as_none(tmp_path: Path) -> None:
    memory, pids = tmp_path / "memory", tmp_path / "pids"
    (memory / "a").mkdir(parents=True)
    (pids / "p").mkdir(parents=True)
    (memory / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (memory / "a/memory.limit_in_bytes").write_text("4096\n")
    (pids / "p/pids.max").write_text("300\n")
    layout = Layout(1, (Hierarchy(memory, frozenset({"memory"})), Hierarchy(pids, frozenset({"pids"}))))
    assert own_bounds(layout, fake_proc(tmp_path, "1:memory:/a\n2:pids:/p\n")) == GroupBounds((Bound(4096, memory / "a"),), (Bound(300, pids / "p"),))
    (memory / "a/memory.limit_in_bytes").unlink()
    assert own_bounds(layout, tmp_path / "proc") == GroupBounds(pids=(Bound(300, pids / "p"),))


def test_host_without_control_groups_has_no_bounds() -> None:
    assert own_bounds(None) == GroupBounds()


def test_limits_of_the_services_groups_bound_the_capacity(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "0::/\n")
    assert max_tasks(proc) == 20000
    free = Host(tmp_path, tmp_path / "none", GroupBounds(), proc).read()
    assert (free.total.memory_bytes, free.total.pids, free.free.pids) == (24684084 * 1024, 20000, 20000 - 132)
    group = tmp_path / "group"
    bounds = GroupBounds((Bound(1 << 30, group), Bound(1 << 31, tmp_path / "above")), (Bound(100, group),))
    bound = Host(tmp_path, tmp_path / "none", bounds, proc).read()
    assert (bound.total.memory_bytes, bound.total.pids) == (1 << 30, 100)
    # The group is gone, so only the free memory of the machine counts.
    assert (bound.free.memory_bytes, bound.free.pids) == (23939160 * 1024, 20000 - 132)


@pytest.mark.parametrize("usage, prefix", [("memory.usage_in_bytes", "total_"), ("memory.current", "")])
def test_free_amount_is_the_rest_of_a_limit_and_at_most_that_of_the_machine(tmp_path: Path, usage: str, prefix: str) -> None:
    proc = fake_proc(tmp_path, "0::/\n")
    group = tmp_path / "group"
    group.mkdir()
    (group / usage).write_text(f"{300 << 20}\n")
    (group / "memory.stat").write_text(f"cache 1\n{prefix}inactive_file {60 << 20}\n{prefix}active_file {40 << 20}\nactive_anon 5\n")
    (group / "pids.current").write_text("30\n")
    assert used_memory(group) == 200 << 20
    bound = Host(tmp_path, tmp_path / "none", GroupBounds((Bound(1 << 30, group),), (Bound(100, group),)), proc).read()
    assert (bound.free.memory_bytes, bound.free.pids) == (824 << 20, 70)  # of 132 tasks on the machine, 30 are the group's
    (proc / "meminfo").write_text("MemTotal: 24684084 kB\nMemAvailable: 1024 kB\n")
    (proc / "loadavg").write_text("0.57 0.62 1.00 1/19990 6997\n")
    (group / usage).write_text(f"{2 << 30}\n")
    found = Host(tmp_path, tmp_path / "none", GroupBounds((Bound(64 << 30, group),), (Bound(100, group),)), proc).read()
    assert (found.free.memory_bytes, found.free.pids) == (1 << 20, 10)
    over = Host(tmp_path, tmp_path / "none", GroupBounds((Bound(1 << 30, group),), (Bound(20, group),)), proc).read()
    assert (over.free.memory_bytes, over.free.pids) == (0, 0)


def test_held_bytes_are_disk_blocks_and_not_lengths(tmp_path: Path) -> None:
    sandboxes = tmp_path / "sandboxes"
    (sandboxes / "one/disk").mkdir(parents=True)
    assert held_bytes(sandboxes) == 0
    assert held_bytes(tmp_path / "none") == 0
    with (sandboxes / "one/disk.img").open("wb") as image:
        image.truncate(1 << 30)
        image.write(os.urandom(1 << 20))
        image.flush()
        os.fsync(image.fileno())
    (sandboxes / "one/link").symlink_to("/dev")
    assert 1 << 20 <= held_bytes(sandboxes) < 2 << 20


def test_disk_that_is_allocated_during_the_reading_counts_once(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small_disk / "sandboxes").mkdir()
    host, image = Host(small_disk, small_disk / "sandboxes", GroupBounds()), small_disk / "sandboxes/disk.img"
    room = host.read().free.disk_bytes

    def allocate_and_count(folder: Path, *, deep: bool = True) -> int:
        if not image.exists():
            with image.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, 1 << 20)
        return held_bytes(folder, deep=deep)

    monkeypatch.setattr(capacity, "held_bytes", allocate_and_count)
    reading = host.read()
    assert (reading.sandbox_disk_bytes, reading.free.disk_bytes + reading.sandbox_disk_bytes) == (1 << 20, room)
