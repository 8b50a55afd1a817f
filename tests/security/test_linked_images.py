"""Promise: whatever an image is made of, it is mounted and entered inside of itself: no link of it leads to the host.

An image's own paths are where the runtimes mount: /proc, /sys, /dev, /tmp. Here they are links to places of the host, absolute and
with more ``..`` than there are folders, or no folders at all. Such a sandbox works, or is refused with the reason; what is on the
host stays as it is. The ideas:

- CVE-2019-16884, CVE-2019-19921 and CVE-2023-28642 (runc, GHSA-g2j6-57v7-gm8c): ``/proc`` is a link, so that what is masked, or
  where labels are written, is somewhere else.
- CVE-2021-30465 (runc, GHSA-c3xm-pvg7-gh7r): a mount's destination is a link out of the root while it is mounted.
- CVE-2024-21626 (runc, GHSA-xr7r-f8xq-vfvv): a working folder of ``/proc/self/fd/N`` that is still open on the host's.
- CVE-2025-31133 and CVE-2025-52565 (runc, GHSA-9493-h29p-rfm2, GHSA-qw9x-cqr3-wc7r): ``/dev/null`` and ``/dev/console`` are links to
  files of /proc, which then are bound over what is to be masked, writable.
- CVE-2025-52881 (runc, GHSA-cgrx-mc8f-2prm): writes of the runtime to /proc are led to another file of it, as core_pattern.
- CVE-2026-88264 and CVE-2026-88265 (crun): ``/dev`` is the image's own, and its console and null are links.
- CVE-2025-24965 (crun, GHSA-f42g-r5jj-qh4j): a file that the runtime writes into the root is a link to a file of the host.
- CVE-2018-15664 and CVE-2019-14271 (docker cp): the libraries and tables that a helper would load are the image's.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.bystanders import nobody_else_notices, outcome
from tests.support.hoststate import changes, host_state
from tests.support.localservice import LocalService
from tests.support.roots import Roots, busybox_image
from tests.support.traces import sandbox_pids

USES_ROOTS = True
UP = "/../../../../../../../.."
BAIT = "@"
"""In a target: a folder of the host with a file in it that only the host knows."""

FILES = (
    *("dev/fd", "dev/ptmx", ".krun_config.json", "entrypoint", ".dockerenv"),
    *("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab", "etc/machine-id"),
)
"""Files that a runtime may write."""
LINKS: Mapping[str, tuple[str, str]] = {
    **{f"{place} is the bait": (place, BAIT) for place in ("tmp", "dev", "proc", "sys", "workspace", "home", "root", "run", "dev/shm", "dev/pts")},
    **{f"{place} is the bait, climbing": (place, f"{UP}{BAIT}") for place in ("dev", "proc")},
    **{f"{place} is the root": (place, "/") for place in ("tmp", "dev", "proc", "sys")},
    **{f"{place} is a file of the host": (place, f"{BAIT}/made-by-the-runtime") for place in FILES},
    "null is the core pattern": ("dev/null", "/proc/sys/kernel/core_pattern"),
    "console is the core pattern": ("dev/console", "/proc/sys/kernel/core_pattern"),
    "zero is the trigger": ("dev/zero", "/proc/sysrq-trigger"),
    "tmp is an empty folder of the host": ("tmp", f"{UP}{BAIT}/empty"),
    "proc is sys": ("proc", "/sys"),
    "sys is proc": ("sys", "/proc"),
    "dev is proc": ("dev", "/proc"),
    "workspace is the host's processes": ("workspace", "/proc/1/root"),
    "tmp is a loop": ("tmp", "tmp"),
    "run is the guest": ("run", "/.sandlot"),
    "the shell is the host's": ("bin/sh", f"{UP}/bin/dash"),
    "the guest's lock on nothing": (".sandlot/helpers/sudo.py", f"{UP}/etc/shadow"),
}
"""What it is -> the path in the image, and what it points to."""

EVERYWHERE = tuple(f"{place} is the bait" for place in ("workspace", "home", "root", "run", "dev/shm", "dev/pts"))
PROGRAMS = ("the shell is the host's", "the guest's lock on nothing")
WRITTEN = (*(f"{place} is a file of the host" for place in FILES), "null is the core pattern", "console is the core pattern", "zero is the trigger")
TOGETHER: Mapping[str, Sequence[Sequence[str]]] = {
    "gvisor": (
        (*EVERYWHERE, *PROGRAMS, *WRITTEN, "proc is the bait", "sys is the bait"),
        ("dev is the bait", "proc is the bait, climbing", "sys is the root", "run is the guest"),
        ("dev is the bait, climbing", "proc is the root", "tmp is the root", "workspace is the host's processes"),
        ("dev is the root", "proc is sys"),
        ("dev is proc", "sys is proc"),
    ),
    "container": (
        (*EVERYWHERE, *PROGRAMS, *WRITTEN, "tmp is the bait"),
        ("tmp is the root", "workspace is the host's processes", "run is the guest", "sys is proc"),
    ),
}
"""Links that share an image: the sandbox has to work with them, so that a refusal of one does not hide what another leads to. Each of the other
links has an image of its own.
"""


def _images(isolation: str) -> dict[str, Sequence[str]]:
    """Template name to its links."""
    together = TOGETHER[isolation]
    alone = [(what,) for what in LINKS if not any(what in each for each in together)]
    return {f"{isolation}-{number}": whats for number, whats in enumerate([*together, *alone])}


AT_ONCE = 4
PLACES = ("/tmp", "/dev", "/proc", "/sys", "/workspace", "/run", "/home")
ATTACK = f"""
find / -xdev -name known-to-the-host
for place in {" ".join(PLACES)}; do
    echo x >$place/left-too
    rm -rf $place/known-to-the-host
done 2>/dev/null
for path in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/kernel/modprobe /proc/1/attr/exec /sys/kernel/uevent_helper; do
    [ -c $path ] || [ ! -e $path ] || ! echo h >$path || echo "written $path"
done 2>/dev/null
for path in /proc/kcore /proc/keys /proc/timer_list /proc/kmsg; do
    [ ! -r $path ] || [ -z "$(timeout 1 head -c 16 $path)" ] || echo "shown $path"
done 2>/dev/null
echo works
"""


@pytest.fixture(scope="module")
def bait() -> Iterator[Path]:
    """A folder of the host that every user may read and write, so that nothing but the boundary is in the way."""
    folder = Path(tempfile.mkdtemp(prefix="sandlot-bait-"))
    folder.chmod(0o777)
    (folder / "known-to-the-host").write_text("the host's")
    (folder / "known-to-the-host").chmod(0o666)
    (folder / "empty").mkdir(mode=0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def busybox() -> Path:
    """A small image to put links into."""
    return busybox_image()


@pytest.fixture(scope="module")
def linked(roots: Roots, busybox: Path, bait: Path, isolation: str) -> dict[str, Sequence[str]]:
    """Templates with links; each one's links."""
    images = _images(isolation)
    for template, whats in images.items():
        root = roots.add(template, busybox)
        for place, target in map(LINKS.__getitem__, whats):
            path = root / place
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            path.symlink_to(target.replace(BAIT, str(bait)))
    return images


@pytest.fixture(scope="module", autouse=True)
def _the_host_is_as_it_was(service: LocalService, other: Sandbox, bait: Path) -> Iterator[None]:
    before, host, mounts = _shape(bait), host_state(), Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    with nobody_else_notices(service, other):
        yield
    assert _shape(bait) == before
    assert changes(host, host_state()) == {}
    assert str(bait) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8"), mounts


def _try(service: LocalService, template: str, *, has_to_work: bool = False) -> str:
    """What is wrong with a sandbox of such an image; empty where it works inside of itself, or was refused and need not work."""
    made = outcome(lambda: service.create(template))
    if isinstance(made, SandlotError):
        return "" if not has_to_work and made.code is ErrorCode.HOST_NOT_READY and made.message else f"{made.code} {made.message}"
    with made:
        done = outcome(lambda: made.commands.run(["/bin/busybox", "sh", "-c", ATTACK], user="root", cwd="/", timeout=60))
        if isinstance(done, SandlotError) or "works" not in done.stdout:
            return repr(done)
        if done.stdout != "works\n":
            return f"the host is seen or changed: {done.stdout}"
        for place in PLACES:
            read, write = partial(made.files.read, user="root"), partial(made.files.write, user="root")
            if not isinstance(outcome(partial(read, f"{place}/known-to-the-host")), SandlotError):
                return f"the host's file is read through {place}"
            outcome(partial(write, f"{place}/left-by-the-sandbox", "x"))
        return ""


def test_links_in_an_image_lead_to_no_host_path(service: LocalService, roots: Roots, linked: Mapping[str, Sequence[str]]) -> None:
    assert {what for whats in linked.values() for what in whats} == set(LINKS)
    before = {template: sorted((roots.folder / template).iterdir()) for template in linked}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {whats: pool.submit(_try, service, template, has_to_work=len(whats) > 1) for template, whats in linked.items()}
    assert {what: each.result() for what, each in tried.items() if each.result()} == {}
    assert {template: sorted((roots.folder / template).iterdir()) for template in linked} == before, "the images are as they were"


def test_working_directory_is_never_a_host_directory(other: Sandbox, bait: Path) -> None:
    """CVE-2024-21626: a command's folder may be any name inside; those of the runtime's own descriptors are closed by then."""
    up = "/".join([".."] * 20)
    for number in range(3, 12):
        for folder in (f"/proc/self/fd/{number}", f"/proc/1/fd/{number}/../../.."):
            seen = outcome(partial(other.commands.run, f"cat {up}{bait}/known-to-the-host; pwd", cwd=folder, user="root", timeout=20))
            assert isinstance(seen, SandlotError) or "the host's" not in seen.stdout, folder
    assert other.commands.run("pwd", cwd="/proc/self/cwd").exit_code == 0


def test_files_in_place_of_directories_cause_an_error_only(service: LocalService, roots: Roots, busybox: Path, isolation: str) -> None:
    files = roots.add(f"files-{isolation}")
    shutil.copytree(busybox / "bin", files / "bin", symlinks=True)
    for name in ("tmp", "dev", "sys", "workspace", "etc", "home", "run"):
        (files / name).write_text("no folder")
    assert _try(service, files.name) == ""


def test_device_nodes_and_pipes_in_an_image_block_nothing(service: LocalService, roots: Roots, busybox: Path, isolation: str) -> None:
    nodes = roots.add(f"nodes-{isolation}", busybox)
    os.mknod(nodes / "disk", 0o60666, os.makedev(7, 0))  # a block device: the first loop device
    os.mkfifo(nodes / "etc" / "fifo", 0o666)
    with service.create(nodes.name) as made:
        assert made.commands.run(["/bin/busybox", "head", "-c", "16", "/disk"], user="root").exit_code != 0
        made.commands.run("rm /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group", user="root")
        assert made.commands.run("echo works", timeout=30).stdout == "works\n", "its tables of users never answer, and nobody waits for them"
        for path in ("/etc/fifo", "/disk"):
            with pytest.raises(SandlotError) as refused:
                made.files.read(path, user="root")
            assert refused.value.code in {ErrorCode.PATH_NOT_REGULAR, ErrorCode.PERMISSION_DENIED}


def test_character_devices_in_an_image_open_no_device_of_the_host(service: LocalService, roots: Roots, busybox: Path, isolation: str) -> None:
    """CVE-2026-96812: the file server of gVisor, root on the host, opened device nodes of an image for the sandbox, such as /dev/cuse."""
    characters = {"mem": (1, 1), "kmsg": (1, 11), "cuse": (10, 203), "loop-control": (10, 237), "tty1": (4, 1)}
    root = roots.add(f"characters-{isolation}", busybox)
    for name, number in characters.items():
        os.mknod(root / name, 0o20666, os.makedev(*number))
    with service.create(root.name) as made:
        # gVisor hides the nodes of an image. In a container they are visible, and cannot be opened.
        seen = made.commands.run(["/bin/busybox", "test", "-c", "/mem"], user="root").exit_code == 0
        assert seen == (isolation == "container")
        program = "".join(f"(exec 3</{name}) && echo {name}; [ -c /{name} ] && (exec 3<>/{name}) && echo {name};" for name in characters)
        assert made.commands.run(program, user="root").stdout == ""
        numbers = {os.makedev(*number) for number in characters.values()}
        held = [handle for process in sandbox_pids(service.data_dir) for handle in Path(f"/proc/{process}/fd").iterdir()]
        devices = [handle for handle in held if handle.exists() and handle.stat().st_rdev in numbers]
        # The file server of gVisor looks the nodes up with O_PATH, which opens no device (open(2)).
        assert [handle for handle in devices if not open_flags(handle) & os.O_PATH] == []
        assert (devices != []) == (isolation == "gvisor")


def open_flags(handle: Path) -> int:
    """The flags that an entry of ``/proc/PID/fd`` was opened with (proc(5))."""
    lines = (handle.parent.parent / "fdinfo" / handle.name).read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("flags:")), 8)


def _shape(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(f"{path} {path.lstat().st_mode} {path.lstat().st_size} {path.lstat().st_mtime_ns}".encode())
    return total.hexdigest()
