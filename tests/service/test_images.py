"""Small images that are really built, in temporary folders.

Needs root, mmdebstrap and a Debian mirror.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.images import interpreter, tree
from sandlot.images.command import output_of
from sandlot.images.recipe import Debian, Recipe, Step
from sandlot.images.recipe_files import parse
from sandlot.images.store import ImageStore
from sandlot.link import payload
from sandlot.model.errors import HostError
from sandlot.model.specs import User
from tests.support.runsc import inside

pytestmark = pytest.mark.slow

TINY_TOML = """
[debian]
suite = "bookworm"
variant = "extract"
packages = ["busybox-static"]

[env]
PATH = "/bin"

[[run]]
argv = ["/bin/busybox", "--install", "-s", "/bin"]
"""
TINY = parse("tiny", TINY_TOML, {})
CHILD = Recipe("child", parent="tiny", files={"/etc/greeting": "hello\n"}, run=(Step(("/bin/sh", "-c", "id -u > /home/user/me"), User.USER),))
KNOWN = {"tiny": TINY, "child": CHILD}


def child(name: str, *argv: str) -> Recipe:
    """Return a recipe that runs one step on the image ``tiny``: nothing is downloaded for it."""
    return Recipe(name, parent="tiny", run=(Step(argv),), env={"PATH": "/bin"})


def mounts_in(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines() if str(folder) in line]


def processes_in(folder: Path) -> list[int]:
    """Processes that have anything to do with a folder: their root, their working folder, their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text(encoding="utf-8", errors="replace")
            words = [str((process / "root").readlink()), str((process / "cwd").readlink()), command]
        except OSError:
            continue
        if any(str(folder) in word for word in words):
            found.append(int(process.name))
    return found


def left_in(cache: Path) -> list[Path]:
    return list((cache / "tmp").iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache directory, and the check that building in it left no mount and no process on the host."""
    yield tmp_path / "cache"
    assert mounts_in(tmp_path) == []
    assert processes_in(tmp_path / "cache") == []


SLOW_TOML = """
from = "tiny"

[env]
PATH = "/bin"

[[run]]
argv = ["/bin/sh", "-c", "echo half > /half; sleep 600"]
"""


BIG_TOML = """
from = "tiny"

[env]
PATH = "/bin"

[[run]]
argv = ["/bin/sh", "-c", "dd if=/dev/zero of=/big bs=1M count=150 && sleep 600"]
"""
"""An image that leaves less than ``SMALL_RESERVE_BYTES`` free on a disk of ``SMALL_DISK_BYTES``, and does not fill the disk."""
SMALL_DISK_BYTES = 256 << 20
SMALL_RESERVE_BYTES = 128 << 20


def write_recipes(folder: Path) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes/tiny.toml").write_text(TINY_TOML, encoding="utf-8")
    (folder / "recipes/slow.toml").write_text(SLOW_TOML, encoding="utf-8")
    (folder / "recipes/big.toml").write_text(BIG_TOML, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Builder:
    """``sandlot image build`` as a process, with the folders ``recipes`` and ``cache`` of a folder."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, folder: Path, name: str) -> Builder:
        argv = [sys.executable, "-m", "sandlot.cli", "image", "build", name, "--cache", str(folder / "cache"), "--recipes", str(folder / "recipes")]
        return cls(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@dataclass(frozen=True, slots=True)
class Built:
    """A cache with the small images and a root of ``tiny``, for tests that only read; and the ends of the two builders of ``tiny``."""

    cache: Path
    ends: tuple[tuple[int, str, str], ...]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("tiny")
    write_recipes(folder)
    builders = [Builder.start(folder, "tiny"), Builder.start(folder, "tiny")]
    ends = tuple(builder.finish() for builder in builders)
    assert [status for status, _, _ in ends] == [0, 0], ends
    store = ImageStore(folder / "cache", KNOWN)
    store.ensure("child")
    store.root("tiny")
    return Built(folder / "cache", ends)


@pytest.fixture
def tiny(built: Built) -> ImageStore:
    """The store of ``built``."""
    return ImageStore(built.cache, KNOWN)


@pytest.fixture
def furnished(cache: Path, built: Built) -> Path:
    """A copy of ``built`` whose files are hard links, for a test that changes something."""
    subprocess.run(["cp", "--archive", "--link", built.cache, cache], check=True)
    return cache


# ------------------------------------------------------------------------------------------------------------- building


def test_concurrent_builders_build_an_image_once(built: Built, tiny: ImageStore, cache: Path) -> None:
    assert ImageStore(cache, KNOWN).find("tiny") is None
    (_, first, told), (_, second, also_told) = built.ends
    assert first == second
    progress = told + also_told
    assert progress.count("tiny: installing Debian bookworm with mmdebstrap") == 1
    assert "tiny: waiting for another process that is building this image" in progress
    assert "tiny: running /bin/busybox" in progress
    assert left_in(built.cache) == []
    lines: list[str] = []
    image = tiny.ensure("tiny", lines.append)
    assert (image, lines) == (tiny.find("tiny"), [])
    assert tiny.root("tiny").tree == Path(first.strip())
    assert (image.path / "bin/ls").is_symlink()
    assert tiny.environment("tiny") == {"PATH": "/bin"}
    summary = tree.summarize(image.path)
    assert (image.digest, image.files, image.size_bytes) == (summary.digest, summary.files, summary.size_bytes)


@pytest.mark.soak
def test_image_equals_that_of_another_machine(cache: Path, tiny: ImageStore) -> None:
    assert ImageStore(cache, KNOWN).ensure("tiny").digest == tiny.ensure("tiny").digest


def test_child_starts_from_its_parent_shares_its_files_and_outlives_it(furnished: Path) -> None:
    store = ImageStore(furnished, KNOWN)
    parent, image = store.ensure("tiny"), store.ensure("child")
    assert (image.path / "etc/greeting").read_text(encoding="utf-8") == "hello\n"
    assert (image.path / "home/user/me").read_text(encoding="utf-8") == "1000\n"
    assert (image.path / "home/user/me").stat().st_uid == 1000
    assert (image.path / "bin/busybox").samefile(parent.path / "bin/busybox")
    assert not (parent.path / "etc/greeting").exists()
    assert parent.digest == tree.summarize(parent.path).digest
    store.remove(image.key)
    assert store.ensure("child") == image, "an image that is built again is the same"
    store.remove(parent.key)
    progress: list[str] = []
    assert (store.ensure("child", progress.append), progress) == (image, [])
    assert tree.summarize(image.path).digest == image.digest


def test_versions_of_declared_languages_are_probed_with_the_environment_of_the_image(furnished: Path) -> None:
    script = '#!/bin/sh\n[ "$(id -u)" = 1000 ] && echo GNU bash, version $VERSION\n'
    first = Recipe("first", parent="tiny", files={"/opt/bash": script}, env={"PATH": "/opt:/bin", "VERSION": "5.9.1"}, languages=("bash",))
    store = ImageStore(furnished, {**KNOWN, "first": first, "second": Recipe("second", parent="first", env={"VERSION": "6"}, files={"/a": ""})})
    assert (store.ensure("second").languages, store.ensure("first").languages) == ({"bash": "6"}, {"bash": "5.9.1"})
    assert store.ensure("tiny").languages == {}


def test_language_without_its_compiler_fails_the_build(furnished: Path) -> None:
    store = ImageStore(furnished, {**KNOWN, "wrong": Recipe("wrong", parent="tiny", languages=("go",), files={"/a": ""})})
    with pytest.raises(HostError, match="probing the version of Go failed"):
        store.ensure("wrong")
    assert store.find("wrong") is None
    assert left_in(furnished) == []


def test_steps_have_no_network_and_see_nothing_of_the_host(furnished: Path) -> None:
    look = "ls / > /top; env > /environment; ps > /processes; cat /proc/net/dev > /net"
    image = ImageStore(furnished, {**KNOWN, "look": child("look", "/bin/sh", "-c", look)}).ensure("look")

    def seen(name: str) -> str:
        return (image.path / name).read_text(encoding="utf-8")

    assert [line.split(":")[0].strip() for line in seen("net").splitlines()[2:]] == ["lo"]
    assert set(seen("top").split()) <= {path.name for path in image.path.iterdir()} | {"dev", "proc", "sys", "tmp"}
    assert {line.partition("=")[0] for line in seen("environment").splitlines()} <= {"PATH", "HOME", "USER", "LANG", "PYTHONHASHSEED", "PWD", "SHLVL"}
    assert len(seen("processes").splitlines()) <= 4


# ------------------------------------------------------------------------------------- several builders, and dying ones


@pytest.fixture
def shop(cache: Path, tmp_path: Path) -> Path:
    """A folder for builders: recipes in ``recipes``, and ``cache`` beside them."""
    assert cache.parent == tmp_path
    write_recipes(tmp_path)
    return tmp_path


def gone(folder: Path) -> None:
    """Wait until no process is left in a folder: those of a killed builder take a moment to end, and hold its lock until then."""
    while processes_in(folder) or any(is_locked(each) for each in folder.iterdir()):
        time.sleep(0.02)


def is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def wait_until(shop: Path, moment: str) -> None:
    """Wait until the tree of a build has a file."""
    while not list((shop / "cache").glob(f"tmp/*/content/tree/{moment}")):
        time.sleep(0.005)


def test_killed_builder_leaves_no_image_and_the_next_build_cleans_up(shop: Path) -> None:
    builder = Builder.start(shop, "tiny")
    wait_until(shop, "etc/apt/sources.list.d")  # mmdebstrap works
    builder.process.send_signal(signal.SIGKILL)
    builder.finish()
    gone(shop / "cache/tmp")
    assert mounts_in(shop) == []
    assert list((shop / "cache/images").iterdir()) == []
    assert len(left_in(shop / "cache")) == 1

    # Whatever is built next removes what was left; this fails at once.
    with pytest.raises(HostError, match=r"(?s)installing the Debian packages failed.*no-such-suite"):
        ImageStore(shop / "cache", {"none": Recipe("none", debian=Debian("no-such-suite", "extract", ()))}).ensure("none")
    assert left_in(shop / "cache") == []


@pytest.mark.usefixtures("furnished")
def test_builder_that_is_told_to_stop_cleans_up(shop: Path) -> None:
    images = sorted((shop / "cache/images").iterdir())
    for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        builder = Builder.start(shop, "slow")
        wait_until(shop, "half")
        builder.process.send_signal(number)
        status, _, _ = builder.finish()
        assert status == expected
        assert left_in(shop / "cache") == []
        assert sorted((shop / "cache/images").iterdir()) == images


@pytest.fixture
def small_shop(tmp_path: Path, built: Built) -> Iterator[Path]:
    """A folder for builders whose cache has the image ``tiny`` and a file system of ``SMALL_DISK_BYTES``."""
    write_recipes(tmp_path)
    disk, cache = tmp_path / "disk", tmp_path / "cache"
    with disk.open("wb") as file:
        file.truncate(SMALL_DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    cache.mkdir()
    subprocess.run(["mount", "-o", "loop", disk, cache], check=True)
    try:
        subprocess.run(["cp", "--archive", f"{built.cache}/.", cache], check=True)
        yield tmp_path
    finally:
        subprocess.run(["umount", cache], check=True)


def test_build_that_would_take_the_reserve_of_the_disk_is_ended_and_leaves_nothing(small_shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDLOT_DISK_RESERVE_BYTES", str(SMALL_RESERVE_BYTES))
    cache = small_shop / "cache"
    images, free = sorted((cache / "images").iterdir()), shutil.disk_usage(cache).free
    assert free > 150 << 20
    status, out, err = Builder.start(small_shop, "big").finish()
    assert (status, out) == (1, "")
    assert "128 MiB are reserved for the host" in err
    assert left_in(cache) == []
    assert sorted((cache / "images").iterdir()) == images
    assert free - shutil.disk_usage(cache).free < 1 << 20
    assert processes_in(cache) == []

    monkeypatch.setenv("SANDLOT_DISK_RESERVE_BYTES", str(SMALL_DISK_BYTES))
    status, _, err = Builder.start(small_shop, "big").finish()
    assert status == 1
    assert "256 MiB are reserved for the host" in err
    assert "running /bin/sh" not in err


# ---------------------------------------------------------------------------------------------------------------- roots


def test_root_is_an_image_with_the_guest_in_it_made_of_hard_links(tiny: ImageStore) -> None:
    image, root = tiny.ensure("tiny"), tiny.root("tiny")
    assert (root.require_tree() / "bin/busybox").samefile(image.path / "bin/busybox")
    assert not (image.path / ".sandlot").exists()
    names = {path.name for path in (root.require_tree() / ".sandlot").iterdir()}
    assert names == {"bin", "lib", "guest.zip", "helpers", "kernel_programs", "volumes"}
    assert [path for path in payload.programs() if not (root.require_tree() / ".sandlot" / path).is_file()] == []
    assert tiny.root("tiny") == root
    assert root.digest != tiny.root("child").digest
    with zipfile.ZipFile(root.require_tree() / ".sandlot/guest.zip") as archive:
        assert set(archive.namelist()) == {f"{name}c" for name in payload.guest_sources()}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        # PEP 552: byte code of the hash kind that is not checked.
        assert {archive.read(name)[4:8] for name in archive.namelist()} == {b"\x01\0\0\0"}


def test_interpreter_of_the_guest_loads_everything_from_its_own_folder(tiny: ImageStore) -> None:
    folder = tiny.root("tiny").require_tree() / ".sandlot"
    files = "[m.__file__ for m in sys.modules.values() if getattr(m, '__file__', None)]"
    code = f"import sys, {', '.join(interpreter.ROOTS)}; print(*sys.path, *{files})"
    done = subprocess.run([*interpreter.argv_in(folder), "-c", code], env={}, check=True, capture_output=True, text=True)
    for word in done.stdout.split():
        assert word.startswith(str(folder))
    libraries = re.findall(
        r"=> (\S+)", output_of((str(folder / "lib/ld.so"), "--library-path", str(folder / "lib"), "--list", str(folder / "bin/python3")))
    )
    assert libraries
    for library in libraries:
        assert library.startswith(str(folder)), library


def test_guest_imports_only_what_its_interpreter_has(tiny: ImageStore) -> None:
    own = {name: text for name, text in payload.programs().items() if not payload.runs_on_the_image(name)}
    folder = tiny.root("tiny").require_tree() / ".sandlot"
    interpreter.check_imports({**payload.guest_sources(), **own}, folder, beside=[Path(path).stem for path in payload.programs()])


def test_guest_interpreter_starts_in_an_image_without_python(tiny: ImageStore, tmp_path: Path) -> None:
    done = inside(tiny.root("tiny"), {}, (*payload.INTERPRETER_ARGV, "-c", "import sys; print(sys.prefix, sys.version_info[:2])"), tmp_path)
    assert done.stdout == "/.sandlot (3, 11)\n"


def test_sandbox_does_not_change_its_image(tiny: ImageStore, tmp_path: Path) -> None:
    image, root = tiny.ensure("tiny"), tiny.root("tiny")
    inside(root, tiny.environment("tiny"), ("/bin/sh", "-c", "echo x > /etc/passwd; rm -r /bin/busybox /home/user; touch /new"), tmp_path, uid=0)
    assert tree.summarize(image.path).digest == image.digest
    assert sorted(path.name for path in root.require_tree().iterdir()) == sorted([".sandlot", *(path.name for path in image.path.iterdir())])


def test_prune_removes_unused_roots_and_keeps_named_ones(furnished: Path) -> None:
    def version(number: str) -> ImageStore:
        return ImageStore(furnished, {"tiny": TINY, "app": Recipe("app", parent="tiny", files={"/etc/version": number})})

    store, newer = version("1"), version("2")
    store.prune()
    old = store.root("app")
    current = newer.root("app")
    assert {stored.kind for stored in newer.list()} == {"images", "guests", "interpreters", "roots"}
    assert newer.prune(keep=[old.digest]) == 1
    assert old.require_tree().is_dir()
    assert (old.require_tree() / "bin/busybox").stat().st_size > 0
    assert newer.prune() == 1
    assert not old.require_tree().exists()
    assert newer.root("app") == current
    newer.remove(current.digest)
    assert not current.require_tree().exists()
    assert newer.root("app") == current
