"""Promise: an image that was made to trick the runtime while it sets a sandbox up gets its own sandbox, or none, and nothing of the host.

A root file system that somebody else made has links where the runtime mounts. Each image here aims them at the host. The ideas:

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

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandlot import SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.hoststate import changes, host_state
from tests.support.inside import run_inside
from tests.support.localservice import LocalService, local_service
from tests.support.planted import Planted, plant
from tests.support.roots import Roots, own_roots
from tests.support.traces import NOTHING, settle

NOT_STARTED = {ErrorCode.HOST_NOT_READY, ErrorCode.SANDBOX_ENDED}

LINKS: dict[str, dict[str, str]] = {
    "proc-to-a-folder": {"proc": "/workspace"},
    "proc-to-the-host": {"proc": "{planted}"},
    "proc-upwards": {"proc": "../../../../../../../../{planted}"},
    "sys": {"sys": "{planted}"},
    "dev": {"dev": "{planted}"},
    "dev-null": {"dev/null": "/proc/sys/kernel/core_pattern", "dev/zero": "/proc/sysrq-trigger", "dev/console": "/proc/sys/kernel/core_pattern"},
    "dev-shm": {"dev/shm": "{planted}", "dev/pts": "{planted}", "dev/fd": "{planted}", "dev/ptmx": "{planted}/made-by-dev"},
    "workspace": {"workspace": "{planted}"},
    "tmp-and-run": {"tmp": "{planted}", "run": "{planted}", "var/tmp": "{planted}"},
    "homes": {"home": "{planted}", "root": "{planted}"},
    "tables": dict.fromkeys(("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/mtab", "etc/machine-id"), "{planted}/made-by-tables"),
    "runtime-files": dict.fromkeys((".krun_config.json", "entrypoint", ".dockerenv", "dev/console"), "{planted}/made-by-runtime"),
}
"""Images by name: links in them, by where they are."""

LOOK = """
told["found"] = []
starts = ["", "/proc/1/root", "/proc/self/cwd", "/proc", "/sys", "/dev", "/dev/shm", "/workspace", "/tmp", "/run", "/home", "/root"]
for path in given["paths"]:
    for start in starts:
        for way in (start + path, os.path.join(start or "/", os.path.basename(path))):
            if given["token"] in str(attempt(read, way)):
                told["found"].append(way)
for start in starts:
    attempt(os.open, f"{start}/made-inside", os.O_CREAT | os.O_WRONLY)
told["written"] = []
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/proc/1/attr/exec", "/sys/kernel/uevent_helper"):
    got = attempt(os.open, path, os.O_WRONLY)
    if "got" in got and os.fstat(got["got"]).st_rdev != os.makedev(1, 3) and "got" in attempt(os.write, got["got"], b"h"):
        told["written"].append(path)
masked = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/kmsg", "/dev/null")
told["shown"] = {path: attempt(read, path, 256).get("got", "") for path in masked}
"""


@pytest.fixture(scope="module")
def planted() -> Iterator[Planted]:
    with plant() as files:
        yield files


@pytest.fixture(scope="module")
def roots() -> Iterator[Roots]:
    with own_roots() as made:
        made.add("odd", made.image)
        yield made


@pytest.fixture(scope="module")
def hosting(isolation: str, roots: Roots) -> Iterator[LocalService]:
    before = host_state()
    with local_service(isolation=isolation, roots=roots.folder) as running:
        yield running
    assert changes(before, host_state()) == {}


@pytest.mark.parametrize("image", LINKS)
def test_links_in_an_image_lead_the_runtime_nowhere(hosting: LocalService, planted: Planted, roots: Roots, image: str) -> None:
    """Either the sandbox starts, and has nothing but its own; or it does not, and the service says so and goes on."""
    with _links(roots.folder / "odd", {where: target.format(planted=planted.files[0].parent) for where, target in LINKS[image].items()}) as root:
        shape = _names(root)
        try:
            made = hosting.create("odd")
        except SandlotError as error:
            assert error.code in NOT_STARTED  # noqa: PT017 - an error is one of two good ends
            assert planted.token not in str(error)  # noqa: PT017 - likewise
        else:
            with made:
                told = run_inside(made, LOOK, user="root", given={"paths": planted.paths, "token": planted.token})
                assert (told["found"], told["written"]) == ([], [])
                assert set(told["shown"].values()) <= {""}
                made.files.write("/usr/used", "used", user="root")
                assert made.commands.run("cat /usr/used", user="root", cwd="/").stdout == "used"
        assert hosting.is_alive()
        settle(hosting.traces, NOTHING)
        assert _names(root) == shape, "the image itself is as it was"
    # The fixture of the planted files sees to it that they are as they were, and alone in their folders.


def test_no_folder_to_work_in_is_the_hosts(hosting: LocalService, planted: Planted) -> None:
    """CVE-2024-21626: a command's folder may be any name inside; those of the runtime's own descriptors are closed by then."""
    with hosting.create("odd") as made:
        for number in range(20):
            for folder in (f"/proc/self/fd/{number}", f"/proc/1/fd/{number}", f"/proc/self/fd/{number}/../../.."):
                try:
                    up = "/".join([".."] * 20)
                    seen = made.commands.run(f"cat {up}{planted.paths[0]}; cat ./{planted.files[0].name}; pwd", cwd=folder, user="root", timeout=20)
                except SandlotError:
                    continue
                assert planted.token not in seen.stdout
        assert made.commands.run("pwd", cwd="/proc/self/cwd").exit_code == 0


@contextmanager
def _links(root: Path, links: dict[str, str]) -> Iterator[Path]:
    """An image with links in the place of what is there; afterwards it is as before."""
    aside: list[tuple[Path, Path]] = []
    for where, target in links.items():
        path = root / where
        if os.path.lexists(path):
            aside.append((path.rename(path.with_name(f"{path.name}-before")), path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    yield root
    for where in links:
        (root / where).unlink()
    for before, path in aside:
        before.rename(path)


def _names(root: Path) -> list[str]:
    return sorted(str(path) for folder in (".", "dev", "workspace", "usr") for path in (root / folder).glob("*"))
