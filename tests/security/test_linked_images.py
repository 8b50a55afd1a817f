"""Promise: whatever an image is made of, it is mounted and entered inside of itself: no link of it leads to the host.

An image's own paths are where the runtimes mount: /proc, /sys, /dev, /tmp. Here they are links to places of the host, absolute and
with more ``..`` than there are folders, as in runc's CVE-2019-16884, CVE-2019-19921 and CVE-2021-30465, or no
folders at all. Such a sandbox works, or is refused with the reason; what is on the host stays as it is.
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
from sandlot.images.recipe import Debian, Recipe, Step
from sandlot.images.store import ImageStore, cache_from
from sandlot.model.errors import ErrorCode
from tests.support.bystanders import nobody_else_notices, outcome
from tests.support.localservice import LocalService, local_service
from tests.support.roots import Roots, own_roots

BUSYBOX = Recipe(
    "busybox",
    debian=Debian(suite="bookworm", variant="extract", packages=("busybox-static",)),
    run=(Step(("/bin/busybox", "--install", "-s", "/bin")),),
)
UP = "/../../../../../../../.."
BAIT = "@"
"""In a target: a folder of the host with a file in it that only the host knows."""

LINKS: Mapping[str, tuple[str, str]] = {
    **{f"{place} is the bait": (place, BAIT) for place in ("tmp", "dev", "proc", "sys", "workspace", "home", "run", "dev/shm", "dev/pts")},
    **{f"{place} is the bait, climbing": (place, f"{UP}{BAIT}") for place in ("tmp", "dev", "proc", "sys", "workspace")},
    **{f"{place} is the root": (place, "/") for place in ("tmp", "dev", "proc", "sys")},
    "tmp is an empty folder of the host": ("tmp", f"{UP}{BAIT}/empty"),
    "proc is sys": ("proc", "/sys"),
    "sys is proc": ("sys", "/proc"),
    "dev is proc": ("dev", "/proc"),
    "workspace is the host's processes": ("workspace", "/proc/1/root"),
    "tmp is a loop": ("tmp", "tmp"),
    "run is the guest": ("run", "/.sandlot"),
    "the shell is the host's": ("bin/sh", f"{UP}/bin/dash"),
    "the guest's lock on nothing": (".sandlot/programs/sudo.py", f"{UP}/etc/shadow"),
}
"""What it is -> the path in the image, and what it points to."""

EVERYWHERE = ("workspace is the bait", "home is the bait", "run is the bait", "dev/shm is the bait", "dev/pts is the bait")
PROGRAMS = ("the shell is the host's", "the guest's lock on nothing")
TOGETHER: Mapping[str, Sequence[Sequence[str]]] = {
    "gvisor": (
        (*EVERYWHERE, *PROGRAMS, "proc is the bait", "sys is the bait"),
        ("dev is the bait", "proc is the bait, climbing", "sys is the bait, climbing", "workspace is the bait, climbing", "run is the guest"),
        ("dev is the bait, climbing", "proc is the root", "sys is the root", "tmp is the root", "workspace is the host's processes"),
        ("dev is the root", "proc is sys"),
        ("dev is proc", "sys is proc"),
    ),
    "container": (
        (*EVERYWHERE, *PROGRAMS, "tmp is the bait"),
        ("tmp is the bait, climbing", "workspace is the bait, climbing", "run is the guest", "sys is proc"),
        ("tmp is the root", "workspace is the host's processes"),
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
def roots(bait: Path) -> Iterator[Roots]:
    with own_roots() as made:
        busybox = ImageStore(cache_from(os.environ), {BUSYBOX.name: BUSYBOX}).ensure(BUSYBOX.name).path
        made.add_image("honest")
        for template, whats in [*_images("gvisor").items(), *_images("container").items()]:
            root = made.add(template, busybox)
            for place, target in map(LINKS.__getitem__, whats):
                path = root / place
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
                path.symlink_to(target.replace(BAIT, str(bait)))
        files = made.add("files")
        shutil.copytree(busybox / "bin", files / "bin", symlinks=True)
        for name in ("tmp", "dev", "sys", "workspace", "etc", "home", "run"):
            (files / name).write_text("no folder")
        nodes = made.add("nodes", busybox)
        os.mknod(nodes / "disk", 0o60666, os.makedev(7, 0))  # a block device: the first loop device
        os.mkfifo(nodes / "etc" / "fifo", 0o666)
        yield made


@pytest.fixture(scope="module")
def service(isolation: str, roots: Roots) -> Iterator[LocalService]:
    with local_service(isolation=isolation, roots=roots.folder) as running:
        yield running


@pytest.fixture(scope="module")
def other(service: LocalService) -> Iterator[Sandbox]:
    with service.create("honest") as made:
        assert made.run_code("mine = 42").ok
        yield made


@pytest.fixture(autouse=True)
def _the_host_is_as_it_was(service: LocalService, other: Sandbox, bait: Path) -> Iterator[None]:
    before, mounts = _shape(bait), Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    with nobody_else_notices(service, other):
        yield
    assert _shape(bait) == before
    assert str(bait) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8"), mounts


def _try(service: LocalService, template: str, *, has_to_work: bool = False) -> str:
    """What is wrong with a sandbox of such an image; empty where it works inside of itself, or was refused and need not work."""
    made = outcome(lambda: service.create(template))
    if isinstance(made, SandlotError):
        return "" if not has_to_work and made.code is ErrorCode.HOST_NOT_READY and made.message else f"{made.code} {made.message}"
    with made:
        done = outcome(lambda: made.commands.run(["/bin/busybox", "sh", "-c", ATTACK], user="root", cwd="/", timeout=60))
        if isinstance(done, SandlotError) or not done.stdout.endswith("works\n"):
            return repr(done)
        if "known-to-the-host" in done.stdout:
            return f"the host's file is seen: {done.stdout}"
        for place in PLACES:
            read, write = partial(made.files.read, user="root"), partial(made.files.write, user="root")
            if not isinstance(outcome(partial(read, f"{place}/known-to-the-host")), SandlotError):
                return f"the host's file is read through {place}"
            outcome(partial(write, f"{place}/left-by-the-sandbox", "x"))
        return ""


def test_no_link_of_an_image_leads_to_the_host(service: LocalService, isolation: str) -> None:
    images = _images(isolation)
    assert {what for whats in images.values() for what in whats} == set(LINKS)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        tried = {whats: pool.submit(_try, service, template, has_to_work=len(whats) > 1) for template, whats in images.items()}
    assert {what: each.result() for what, each in tried.items() if each.result()} == {}


def test_files_where_folders_are_expected_are_no_more_than_an_error(service: LocalService) -> None:
    assert _try(service, "files") == ""


def test_device_nodes_and_pipes_in_an_image_are_dead(service: LocalService) -> None:
    with service.create("nodes") as made:
        assert made.commands.run(["/bin/busybox", "head", "-c", "16", "/disk"], user="root").exit_code != 0
        made.commands.run("rm /etc/passwd /etc/group; mkfifo /etc/passwd /etc/group", user="root")
        assert made.commands.run("echo works", timeout=30).stdout == "works\n", "its tables of users never answer, and nobody waits for them"
        for path in ("/etc/fifo", "/disk"):
            with pytest.raises(SandlotError) as refused:
                made.files.read(path, user="root")
            assert refused.value.code in {ErrorCode.PATH_INVALID, ErrorCode.PERMISSION_DENIED}


def _shape(folder: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        total.update(f"{path} {path.lstat().st_mode} {path.lstat().st_size} {path.lstat().st_mtime_ns}".encode())
    return total.hexdigest()
