"""Promise: whoever fills his disk, in whatever form, gets ENOSPC (or what his file system says of its own limits), and no more.

Files that look larger than they are, trees deeper than any path and links without end do no harm to whoever looks at them from
outside, by calls for files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.bombs import KILLED, OUT_OF_MEMORY, Bomb, Targets, check_serves, ends, explode_all
from tests.support.localservice import LocalService
from tests.support.traces import memory_bytes

MIB = 1 << 20
DISK = 64 * MIB
FLAT_BYTES = 48 * MIB
TEBIBYTE = 1 << 40
DEPTH = 3_000
"""Of names of one byte: more than a path. More is only slower: Linux takes the longer to remove a folder the deeper it is."""

FULL = ends("ENOSPC")
INODES = ends("ENOSPC", "EMLINK")
IN_MEMORY = ends(OUT_OF_MEMORY, "ENOSPC", "RuntimeError")
"""gVisor keeps names in its own memory, and has no number for them: more than a disk of this size has on Linux are made, and no more asked for."""
BOMBS = (
    Bomb("data", "file = open('/tmp/data', 'wb', buffering=0)\nuntil_refused(lambda number: file.write(bytes(1 << 20)))\nhold()", FULL),
    Bomb(
        "data of root", "file = open('/root/data', 'wb', buffering=0)\nuntil_refused(lambda number: file.write(bytes(1 << 20)))\nhold()", FULL, "root"
    ),
    Bomb(
        "data in many files that have no name",
        """
held = []
def one(number):
    held.append(open("/tmp/data", "wb", buffering=0))
    os.unlink("/tmp/data")
    held[-1].write(bytes(1 << 20))
until_refused(one)
hold()
""",
        FULL,
    ),
    Bomb(
        "allocated at once",
        "file = open('/tmp/data', 'wb')\nuntil_refused(lambda number: os.posix_fallocate(file.fileno(), 0, 1 << (20 + number)))\nhold()",
        ends("ENOSPC", "EFBIG"),
    ),
    Bomb(
        "through a mapping",
        # A page that finds no room is SIGBUS (mmap(2)); gVisor has taken the room from its own file before.
        """
import mmap
with open("/tmp/data", "wb") as file:
    file.truncate(512 << 20)
file = open("/tmp/data", "r+b")
area = mmap.mmap(file.fileno(), 0)
for at in range(0, len(area), 4096):
    area[at] = 7
area.flush()
tell("done")
""",
        ends("ENOSPC", f"signal {7}", "ENOMEM"),
    ),
    Bomb(
        "empty files",
        """
os.makedirs("/tmp/many", exist_ok=True)
os.chdir("/tmp/many")
def one(number):
    os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY))
    if number > 10000:
        raise RuntimeError
until_refused(one)
hold()
""",
        INODES,
        differs=(("gvisor", IN_MEMORY),),
    ),
    Bomb(
        "folders",
        """
os.makedirs("/tmp/folders", exist_ok=True)
os.chdir("/tmp/folders")
def one(number):
    os.mkdir(f"d{number}")
    if number > 10000:
        raise RuntimeError
until_refused(one)
hold()
""",
        INODES,
        differs=(("gvisor", IN_MEMORY),),
    ),
    Bomb(
        "hard links",
        """
os.chdir("/tmp")
open("one", "w").close()
def one(number):
    os.link("one", f"{number:0200}")
    if number > 8000:
        raise RuntimeError
until_refused(one)
hold()
""",
        INODES | {"RuntimeError"},
        differs=(("gvisor", IN_MEMORY | {"EMLINK"}),),
    ),
    Bomb(
        "attributes",
        """
def one(number):
    open(f"/tmp/{number}", "w").close()
    os.setxattr(f"/tmp/{number}", "user.bomb", os.urandom(3500))
    if number > 3000:
        raise RuntimeError
until_refused(one)
hold()
""",
        ends("ENOSPC", "EOPNOTSUPP", "ENOTSUP", "EPERM", "RuntimeError", KILLED, OUT_OF_MEMORY),
    ),
    Bomb(
        "an archive that is a thousand times larger unpacked",
        """
import shutil, zipfile
with zipfile.ZipFile("/tmp/small.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("large", "w", force_zip64=True) as member:
    for _ in range(256):
        member.write(bytes(1 << 20))
assert os.stat("/tmp/small.zip").st_size < 1 << 20
try:
    shutil.unpack_archive("/tmp/small.zip", "/tmp/unpacked")
except OSError as error:
    tell(error)
""",
        FULL,
    ),
)


@pytest.fixture(scope="module")
def targets(service: LocalService) -> Iterator[Targets]:
    made = Targets(service, memory="256M", disk="64M", pids=64)
    yield made
    made.close()


@pytest.fixture
def sandbox(targets: Targets) -> Sandbox:
    return targets.get()


@pytest.mark.timeout(600)
def test_the_disk_is_used_up(targets: Targets, isolation: str) -> None:
    explode_all(targets, BOMBS, isolation)


def test_calls_for_files_say_that_the_disk_is_full(sandbox: Sandbox) -> None:
    """And leave what was there before; what is removed makes room again."""
    sandbox.files.write("/workspace/kept", "as it was")
    sandbox.commands.run("head -c 200M /dev/zero >/workspace/big; head -c 200M /dev/zero >/workspace/rest")
    with pytest.raises(SandlotError) as refused:
        sandbox.files.write("/workspace/kept", bytes(4 * MIB))
    assert refused.value.code is ErrorCode.DISK_FULL
    assert sandbox.files.read("/workspace/kept") == "as it was"
    assert {entry.name for entry in sandbox.files.list("/workspace")} == {"kept", "big", "rest"}
    sandbox.files.remove("/workspace/big")
    sandbox.files.remove("/workspace/rest")
    sandbox.files.write("/workspace/kept", bytes(4 * MIB))
    sandbox.files.remove("/workspace/kept")
    check_serves(sandbox)


def test_a_file_that_looks_like_a_tebibyte_costs_nobody_one(service: LocalService, sandbox: Sandbox) -> None:
    sandbox.commands.run(["truncate", "-s", str(TEBIBYTE), "/workspace/sparse"])
    assert sandbox.files.stat("/workspace/sparse").size == TEBIBYTE
    before = memory_bytes(service.pid)
    # Read by the piece, as far as one likes.
    with sandbox.files.read("/workspace/sparse", "stream") as stream:
        taken = 0
        for piece in stream:
            assert not any(piece)
            taken += len(piece)
            if taken > 32 * MIB:
                break
    # Copied and packed inside: room and time are the sandbox's own.
    copied = sandbox.commands.run("cp --sparse=never sparse copy", timeout=20)
    assert copied.reason == "timeout" or "No space left on device" in copied.stderr
    packed = sandbox.commands.run(
        "rm -f copy; tar cf - sparse | head -c 20M | wc -c; tar cSf packed sparse && tar xSf packed -O | head -c 1M | wc -c", timeout=20
    )
    assert packed.stdout.startswith(f"{20 * MIB}\n")
    sandbox.commands.run("rm -f /workspace/*")
    assert memory_bytes(service.pid) - before < FLAT_BYTES
    check_serves(sandbox)


def test_a_tree_deeper_than_any_path(service: LocalService, tmp_path: Path) -> None:
    """Made, looked at, packed, taken out and removed: no path reaches its end, and none is made that long."""
    dig = f"""
import os
for number in range({DEPTH}):
    os.mkdir("d")
    os.chdir("d")
open("file", "w").close()
"""
    with service.create(memory="512M", disk="512M") as made:
        made.files.make_dir("/workspace/deep")
        assert made.commands.run(["python3", "-c", dig], cwd="/workspace/deep", timeout=120).exit_code == 0
        assert [entry.name for entry in made.files.list("/workspace/deep")] == ["d"]
        far = "/workspace/deep" + "/d" * 2000
        assert made.files.stat(far).kind == "directory"
        with pytest.raises(SandlotError) as refused:
            made.files.stat("/workspace/deep" + "/d" * 2039 + "/d/d/d/d")
        assert refused.value.code is ErrorCode.PATH_INVALID
        assert made.files.list(far)[0].name == "d"
        with pytest.raises(SandlotError) as refused:
            made.files.download(far, tmp_path / "taken")
        assert refused.value.code is ErrorCode.PATH_INVALID, "what no path leads to is not left out silently"
        assert made.files.move("/workspace/deep", "/workspace/moved").kind == "directory"
        assert made.files.remove("/workspace/moved") == DEPTH + 2
        assert made.files.list("/workspace") == []
        check_serves(made)


def test_very_long_names(sandbox: Sandbox) -> None:
    for name, code in (("n" * 255, None), ("n" * 256, ErrorCode.PATH_INVALID), ("/".join(["n" * 250] * 17), ErrorCode.PATH_INVALID)):
        calls = (
            lambda name=name: sandbox.files.write(f"/workspace/{name}", "x"),
            lambda name=name: sandbox.files.stat(f"/workspace/{name}"),
            lambda name=name: sandbox.files.remove(f"/workspace/{name}"),
        )
        for call in calls:
            if code is None:
                call()
                continue
            with pytest.raises(SandlotError) as refused:
                call()
            assert refused.value.code is code
    # Whatever a name is made of, listing passes it on.
    sandbox.commands.run(
        ["python3", "-c", "import os\nfor c in range(1, 256):\n    if c != 47: open(b'/workspace/' + bytes([c]) * 200, 'w').close()"]
    )
    assert len(sandbox.files.list("/workspace")) == 254
    sandbox.commands.run("find /workspace -mindepth 1 -delete")
    check_serves(sandbox)


def test_links_without_end(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.commands.run(
        "mkdir tree && cd tree && ln -s itself itself && ln -s two one && ln -s one two && ln -s . here && ln -s .. above"
        " && mkdir in && ln -s ../in in/again"
        " && i=0; while [ $i -lt 60 ]; do ln -s link$((i + 1)) link$i; i=$((i + 1)); done; touch link60; mkfifo pipe"
    )
    for name in ("itself", "one", "link0"):
        for call in (
            lambda name=name: sandbox.files.read(f"/workspace/tree/{name}"),
            lambda name=name: sandbox.files.write(f"/workspace/tree/{name}/inner", "x"),
            lambda name=name: sandbox.files.list(f"/workspace/tree/{name}"),
        ):
            with pytest.raises(SandlotError) as refused:
                call()
            # What is written below a link that leads nowhere meets it as something that is there and no folder.
            assert refused.value.code in {ErrorCode.PATH_INVALID, ErrorCode.PATH_EXISTS}, name
    assert len(sandbox.files.list("/workspace/tree" + "/here" * 30)) == 68
    assert sandbox.files.stat("/workspace/tree/in" + "/again" * 30).kind == "directory"
    sandbox.files.download("/workspace/tree", tmp_path / "taken")
    assert (tmp_path / "taken" / "link60").exists()
    assert sandbox.files.remove("/workspace/tree") == 70
    check_serves(sandbox)


def test_ten_thousand_entries_in_one_folder(service: LocalService) -> None:
    """Listed by the page and removed, while others are served."""
    many = "import os\nfor n in range(10_000):\n    os.close(os.open(f'{n:06}', os.O_CREAT | os.O_WRONLY))\n"
    with service.create(memory="768M", disk="512M") as made:
        made.files.make_dir("/workspace/many")
        done = made.commands.run(["python3", "-c", many], cwd="/workspace/many", timeout=120)
        assert done.exit_code == 0, done.stderr
        before = memory_bytes(service.pid)
        answer = made._client.request("GET", f"/v1/sandboxes/{made.id}/files", params={"path": "/workspace/many", "offset": "9500"})  # noqa: SLF001
        assert len(answer["entries"]) == 500
        assert made.files.remove("/workspace/many") == 10_001
        assert memory_bytes(service.pid) - before < FLAT_BYTES
        check_serves(made)
