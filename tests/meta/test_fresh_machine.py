"""scripts/setup on a machine that has nothing: a minimal Debian of this machine's release, in a folder of its own."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.meta.tree import SCRIPTS

pytestmark = pytest.mark.soak

#: What set-up may change outside of its own folder, beside what dpkg installs.
OWN = {"etc/apt/sources.list.d/sandlot-backports.sources", "etc/apt/preferences.d/sandlot"}
#: Where no package puts anything, and apt's configuration.
WATCHED = ("etc/apt", "usr/local", "opt", "srv", "home", "root", "media", "mnt")


def host(line: str) -> str:
    program = f"set -euo pipefail; source {SCRIPTS}/lib.sh; source {SCRIPTS}/apt.sh; {line}"
    return subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def release() -> str:
    return host("os_release VERSION_CODENAME")


@pytest.fixture(scope="module")
def mirror(release: str) -> str:
    return host(f"debian_source {release}").split("|")[0]


@pytest.fixture(scope="module")
def minimal(tmp_path_factory: pytest.TempPathFactory, release: str, mirror: str) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("minimal")
    options = folder / "apt.conf"
    options.write_text(host("apt-config dump --no-empty | grep '^Acquire::\\(http\\|Check\\)' || true") + "\n", encoding="utf-8")
    root = folder / "root"
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--aptopt={options}", release, str(root), mirror], check=True, timeout=280)
    yield root
    shutil.rmtree(root)


@pytest.fixture
def machine(tmp_path: Path, minimal: Path) -> Iterator[Path]:
    root = tmp_path / "machine"
    subprocess.run(["cp", "-a", minimal, root], check=True)
    (root / "sandlot").mkdir()
    shutil.copytree(SCRIPTS, root / "sandlot" / "scripts")
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    yield root
    shutil.rmtree(root)


def enter(root: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in the machine, with mounts that go when it ends."""
    mounts = (
        'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" /usr/bin/env -i PATH=/usr/sbin:/usr/bin CI=true bash -c "$1"'
    )
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", mounts, str(root), line]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def contents(root: Path) -> dict[str, str]:
    files = (path for top in WATCHED for path in (root / top).rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def one_line(root: Path, release: str, mirror: str) -> None:
    (root / "etc/apt/sources.list").write_text(f"deb {mirror} {release} main\n", encoding="utf-8")


def deb822(root: Path, release: str, mirror: str) -> None:
    (root / "etc/apt/sources.list").unlink()
    keys = "/usr/share/keyrings/debian-archive-keyring.gpg"
    stanza = f"# ours\n\nTypes: deb deb-src\nURIs: {mirror}\nSuites: {release} {release}-updates\nComponents: main contrib\nSigned-By: {keys}\n"
    (root / "etc/apt/sources.list.d/debian.sources").write_text(stanza, encoding="utf-8")


@pytest.mark.parametrize("configure", [one_line, deb822])
def test_bare_machine_gets_its_runtimes_and_nothing_else_is_changed(
    machine: Path, release: str, mirror: str, configure: Callable[[Path, str, str], None]
) -> None:
    configure(machine, release, mirror)
    shutil.rmtree(machine / "var/lib/apt/lists")
    before = contents(machine)

    first = enter(machine, "/sandlot/scripts/setup --system")

    assert first.returncode == 0, first.stderr
    assert first.stdout == ""
    after = contents(machine)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == (OWN if release == "bookworm" else set())
    assert enter(machine, "runsc --version && crun --version && mmdebstrap --version && mkfs.ext4 -V && losetup --version").returncode == 0
    # Nothing but runsc comes from the added source.
    if release == "bookworm":
        assert enter(machine, "dpkg-query -W -f '${Package} ${Version}\\n' | grep '~bpo' | cut -d' ' -f1").stdout.split() == ["runsc"]

    second = enter(machine, "/sandlot/scripts/setup --system")
    assert second.returncode == 0
    assert "==>" not in second.stderr, "the second run finds nothing to do"


def test_a_mirror_without_backports_is_an_error_that_leaves_apt_as_it_was(machine: Path, release: str, mirror: str) -> None:
    one_line(machine, release, mirror)
    before = contents(machine)
    apt = machine / "sandlot/scripts/apt.sh"
    apt.write_text(apt.read_text(encoding="utf-8").replace("BACKPORTS=bookworm-backports", "BACKPORTS=bookworm-nonesuch"), encoding="utf-8")

    refused = enter(machine, "source /sandlot/scripts/lib.sh; source /sandlot/scripts/apt.sh; install_runsc_from_backports")

    assert refused.returncode != 0
    assert "official gVisor release" in refused.stderr
    assert contents(machine) == before
