"""Images, really built: small ones, in seconds, in temporary folders.

Needs root, mmdebstrap and a Debian mirror.
"""

from __future__ import annotations

import fcntl
import os
import re
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
from sandlot.images.process import output_of
from sandlot.images.recipe import Debian, Recipe, Step
from sandlot.images.store import ImageStore
from sandlot.link import payload
from sandlot.model.errors import ErrorCode, HostError, LimitError
from sandlot.model.specs import User
from tests.support.runsc import inside

pytestmark = pytest.mark.slow

BUSYBOX = Debian(suite="bookworm", variant="extract", packages=("busybox-static",))
INSTALL = Step(("/bin/busybox", "--install", "-s", "/bin"))
TINY = Recipe("tiny", debian=BUSYBOX, run=(INSTALL,), env={"PATH": "/bin"})
CHILD = Recipe("child", parent="tiny", files={"/etc/greeting": "hello\n"}, run=(Step(("/bin/sh", "-c", "id -u > /home/user/me"), User.USER),))
KNOWN = {"tiny": TINY, "child": CHILD}

TINY_TOML = """
[debian]
suite = "bookworm"
variant = "extract"
packages = ["busybox-static"]

[[run]]
argv = ["/bin/busybox", "--install", "-s", "/bin"]
"""


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


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory with the small images and a root of one of them, for tests that only read."""
    folder = tmp_path_factory.mktemp("tiny") / "cache"
    store = ImageStore(folder, KNOWN)
    store.ensure("child")
    store.root("tiny")
    return folder


@pytest.fixture
def tiny(shelf: Path) -> ImageStore:
    """The store in it."""
    return ImageStore(shelf, KNOWN)


@pytest.fixture
def furnished(cache: Path, shelf: Path) -> Path:
    """A copy of it, for a test that takes things away: each file is the same one, so it costs nothing."""
    subprocess.run(["cp", "--archive", "--link", shelf, cache], check=True)
    return cache


# ------------------------------------------------------------------------------------------------------------- building


def test_an_image_is_built_with_progress_then_found_without_a_word(cache: Path) -> None:
    store = ImageStore(cache, KNOWN)
    assert store.find("tiny") is None
    said: list[str] = []
    image = store.ensure("tiny", said.append)
    assert said[0] == "tiny: installing Debian bookworm with mmdebstrap"
    assert "tiny: running /bin/busybox" in said
    assert left_in(cache) == []
    assert (image.path / "bin/ls").is_symlink()
    assert image.env == {"PATH": "/bin"}

    summary = tree.summary(image.path)
    assert (image.digest, image.files, image.size_bytes) == (summary.digest, summary.files, summary.size_bytes)
    again: list[str] = []
    assert store.ensure("tiny", again.append) == image == store.find("tiny")
    assert again == []


def test_two_machines_build_the_same(cache: Path, tiny: ImageStore) -> None:
    one, two = tiny.ensure("tiny"), ImageStore(cache, KNOWN).ensure("tiny")
    assert one.path != two.path
    assert one.digest == two.digest


def test_a_recipe_begins_where_its_parent_ended_and_shares_its_files(tiny: ImageStore) -> None:
    parent, child = tiny.ensure("tiny"), tiny.ensure("child")
    assert (child.path / "etc/greeting").read_text(encoding="utf-8") == "hello\n"
    assert (child.path / "home/user/me").read_text(encoding="utf-8") == "1000\n"
    assert (child.path / "home/user/me").stat().st_uid == 1000
    assert (child.path / "bin/busybox").samefile(parent.path / "bin/busybox")
    assert not (parent.path / "etc/greeting").exists()
    assert parent.digest == tree.summary(parent.path).digest


def test_an_image_does_not_need_its_parent_any_more(furnished: Path) -> None:
    store = ImageStore(furnished, KNOWN)
    child = store.ensure("child")
    store.remove(store.ensure("tiny").key)
    said: list[str] = []
    assert store.ensure("child", said.append) == child
    assert said == []
    assert tree.summary(child.path).digest == child.digest


def test_steps_have_no_network_and_see_nothing_of_the_host(cache: Path) -> None:
    look = Step(
        ("/bin/sh", "-c", "ls /sys/class/net > /links; ls / > /top; env > /environment; hostname > /name; ps > /processes; cat /proc/net/dev > /net")
    )
    image = ImageStore(cache, {"look": Recipe("look", debian=BUSYBOX, run=(INSTALL, look))}).ensure("look")

    def seen(name: str) -> str:
        return (image.path / name).read_text(encoding="utf-8")

    assert [line.split(":")[0].strip() for line in seen("net").splitlines()[2:]] == ["lo"]
    assert "work" not in seen("top").split()
    assert {line.partition("=")[0] for line in seen("environment").splitlines()} <= {"PATH", "HOME", "USER", "LANG", "PYTHONHASHSEED", "PWD", "SHLVL"}
    assert len(seen("processes").splitlines()) <= 4


def test_a_build_that_fails_shows_why_and_leaves_nothing(cache: Path) -> None:
    store = ImageStore(cache, {"bad": Recipe("bad", debian=Debian("bookworm", "extract", ("no-such-package-anywhere",)))})
    with pytest.raises(HostError, match=r"(?s)installing the Debian packages failed.*no-such-package-anywhere") as caught:
        store.ensure("bad")
    log = Path(caught.value.fields["log"])
    assert str(log) in caught.value.hint
    assert "no-such-package-anywhere" in log.read_text(encoding="utf-8")
    assert store.find("bad") is None
    assert left_in(cache) == []


def test_a_step_that_fails_shows_its_output(cache: Path) -> None:
    store = ImageStore(cache, {"bad": Recipe("bad", debian=BUSYBOX, run=(INSTALL, Step(("/bin/sh", "-c", "echo oh no; exit 7"))))})
    with pytest.raises(HostError, match=r"(?s)running /bin/sh failed with status 7.*oh no"):
        store.ensure("bad")
    assert left_in(cache) == []


def test_a_full_disk_is_told_as_one_and_leaves_nothing(cache: Path) -> None:
    cache.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", cache], check=True)
    try:
        with pytest.raises(LimitError, match=r"SANDLOT_CACHE_DIR") as caught:
            ImageStore(cache, KNOWN).ensure("tiny")
        assert caught.value.code is ErrorCode.DISK_FULL
        assert left_in(cache) == []
    finally:
        subprocess.run(["umount", cache], check=True)


def test_whoever_listens_can_end_a_build(cache: Path) -> None:
    class Enough(Exception):  # noqa: N818 - not an error
        pass

    def listen(line: str) -> None:
        if "running" in line:
            raise Enough

    with pytest.raises(Enough):
        ImageStore(cache, KNOWN).ensure("tiny", listen)
    assert left_in(cache) == []


# ----------------------------------------------------------------------------------------- more than one, and dying ones


@dataclass(frozen=True, slots=True)
class Builder:
    """``python -m sandlot.images build`` in a process of its own."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, folder: Path, name: str) -> Builder:
        argv = [sys.executable, "-m", "sandlot.images", "build", name, "--cache", str(folder / "cache"), "--recipes", str(folder / "recipes")]
        return cls(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def finish(self) -> tuple[int, str, str]:
        out, err = self.process.communicate()
        return self.process.returncode, out, err


@pytest.fixture
def shop(cache: Path, tmp_path: Path) -> Path:
    """A folder with recipes for builders in processes of their own; their cache is in it as well."""
    assert cache.parent == tmp_path
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/tiny.toml").write_text(TINY_TOML, encoding="utf-8")
    slow = TINY_TOML + '[[run]]\nargv = ["/bin/sh", "-c", "echo half > /half; sleep 600"]\n'
    (tmp_path / "recipes/slow.toml").write_text(slow, encoding="utf-8")
    return tmp_path


def gone(folder: Path) -> None:
    """Wait until no process is left in a folder: those of a killed builder are on their way, and hold its lock until the last moment."""
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


def test_two_builders_of_one_image_make_it_once(shop: Path) -> None:
    builders = [Builder.start(shop, "tiny"), Builder.start(shop, "tiny")]
    ends = [builder.finish() for builder in builders]
    assert [status for status, _, _ in ends] == [0, 0], ends
    assert ends[0][1] == ends[1][1]
    assert Path(ends[0][1].strip()).is_dir()
    said = ends[0][2] + ends[1][2]
    assert said.count("tiny: installing Debian") == 1
    assert "tiny: another process is building it; waiting for that" in said
    assert left_in(shop / "cache") == []


MOMENTS = {"mmdebstrap works": "etc/apt/sources.list.d", "a step runs": "half"}


def wait_until(shop: Path, moment: str) -> None:
    """Wait until a build has come so far that its tree has this."""
    while not list((shop / "cache").glob(f"tmp/*/fresh/tree/{moment}")):
        time.sleep(0.005)


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_killed_builder_leaves_nothing_that_is_used_and_the_next_one_sweeps(shop: Path, moment: str) -> None:
    builder = Builder.start(shop, "slow")
    wait_until(shop, moment)
    builder.process.send_signal(signal.SIGKILL)
    builder.finish()
    gone(shop / "cache/tmp")
    assert mounts_in(shop) == []
    assert list((shop / "cache/images").iterdir()) == []
    assert len(left_in(shop / "cache")) == 1

    ImageStore(shop / "cache", KNOWN).ensure("tiny")
    assert left_in(shop / "cache") == []


@pytest.mark.parametrize("number, expected", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_builder_that_is_asked_to_stop_cleans_up_behind_itself(shop: Path, number: signal.Signals, expected: int) -> None:
    builder = Builder.start(shop, "slow")
    wait_until(shop, "half")
    builder.process.send_signal(number)
    status, _, _ = builder.finish()
    assert status == expected
    assert left_in(shop / "cache") == []
    assert list((shop / "cache/images").iterdir()) == []


def test_the_command_line_tells_an_unknown_template(shop: Path) -> None:
    status, out, err = Builder.start(shop, "nope").finish()
    assert (status, out) == (1, "")
    assert err.startswith("sandlot: There is no template 'nope'. Known templates: base, code-interpreter, slow, tiny.")


# ---------------------------------------------------------------------------------------------------------------- roots


def test_a_root_is_an_image_with_the_guest_in_it_made_of_links(tiny: ImageStore) -> None:
    image, root = tiny.ensure("tiny"), tiny.root("tiny")
    assert (root.path / "bin/busybox").samefile(image.path / "bin/busybox")
    assert not (image.path / ".sandlot").exists()
    names = {path.name for path in (root.path / ".sandlot").iterdir()}
    assert names == {"bin", "lib", "guest.zip", "programs", "volumes"}
    assert {path.name for path in (root.path / ".sandlot/programs").iterdir()} == {name.partition("/")[0] for name in payload.programs()}
    assert tiny.root("tiny") == root


def test_every_image_has_a_root_of_its_own_digest(tiny: ImageStore) -> None:
    assert tiny.root("tiny").digest != tiny.root("child").digest


def test_the_guests_zip_holds_every_module_as_byte_code_and_nothing_else(tiny: ImageStore) -> None:
    with zipfile.ZipFile(tiny.root("tiny").path / ".sandlot/guest.zip") as archive:
        assert set(archive.namelist()) == {f"{name}c" for name in payload.guest_sources()}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        # PEP 552: byte code of hash kind that is not checked.
        assert {archive.read(name)[4:8] for name in archive.namelist()} == {b"\x01\0\0\0"}


def test_the_interpreter_finds_everything_it_promises_in_its_own_folder(tiny: ImageStore) -> None:
    folder = tiny.root("tiny").path / ".sandlot"
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


def test_the_guest_imports_nothing_that_its_interpreter_lacks(tiny: ImageStore) -> None:
    own = {name: text for name, text in payload.programs().items() if not payload.runs_on_the_image(name)}
    folder = tiny.root("tiny").path / ".sandlot"
    interpreter.check_imports({**payload.guest_sources(), **own}, folder, beside=[name.removesuffix(".py") for name in payload.programs()])


def test_the_interpreter_starts_in_a_sandbox_whose_image_has_no_python(tiny: ImageStore, tmp_path: Path) -> None:
    done = inside(tiny.root("tiny"), {}, (*payload.INTERPRETER_ARGV, "-c", "import sys; print(sys.prefix, sys.version_info[:2])"), tmp_path)
    assert done.stdout == "/.sandlot (3, 11)\n"


def test_what_is_not_used_is_pruned_and_what_is_kept_stays(furnished: Path) -> None:
    store = ImageStore(furnished, {"tiny": KNOWN["tiny"]})
    store.prune()
    old = store.root("tiny")
    newer = ImageStore(furnished, {"tiny": Recipe("tiny", debian=BUSYBOX, run=(INSTALL,), files={"/etc/version": "2"})})
    current = newer.root("tiny")
    assert {stored.kind for stored in newer.list()} == {"images", "guests", "interpreters", "roots"}
    assert newer.prune(keep=[old.digest]) == 1
    assert old.path.is_dir()
    assert (old.path / "bin/busybox").stat().st_size > 0
    assert newer.prune() == 1
    assert not old.path.exists()
    assert newer.root("tiny") == current
    newer.remove(current.digest)
    assert not current.path.exists()
    assert newer.root("tiny") == current
