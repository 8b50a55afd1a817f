"""Promise: whoever fills his disk, in whatever form, gets ENOSPC (or what his file system says of its own limits), and no more.

Files that look larger than they are, trees deeper than any path and links without end do no harm to whoever looks at them from
outside, by calls for files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.bombs import KILLED, OUT_OF_MEMORY, Bomb, Targets, check_serves, ends, explode_all, parametrize
from tests.support.localservice import LocalService
from tests.support.traces import memory_bytes

MIB = 1 << 20
LIMITS = {"memory": "256M", "disk": "16M", "pids": 64}
FLAT_BYTES = 48 * MIB
TEBIBYTE = 1 << 40
FOLDER = "folder"
DEPTH = 1_100
"""Of folders: a path has room for 585 of these names, and Python for 1,000 nested calls."""

FULL = ends("ENOSPC")
INODES = ends("ENOSPC", "EMLINK")
IN_MEMORY = ends(OUT_OF_MEMORY, "ENOSPC", "RuntimeError")
"""gVisor keeps names in its own memory, and has no number for them: more than a disk of this size has on Linux are made, and no more asked for."""
BOMBS = (
    Bomb("data", "file = open('/tmp/data', 'wb', buffering=0)\nuntil_refused(lambda number: file.write(bytes(1 << 20)))\nhold()", FULL),
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
    file.truncate(64 << 20)
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
    if number > 6000:
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
    if number > 3000:
        raise RuntimeError
until_refused(one)
hold()
""",
        INODES | {"RuntimeError"},
        differs=(("gvisor", IN_MEMORY | {"EMLINK"}),),
    ),
    Bomb(
        "an archive that is a thousand times larger unpacked",
        """
import shutil, zipfile
with zipfile.ZipFile("/tmp/small.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("large", "w", force_zip64=True) as member:
    for _ in range(48):
        member.write(bytes(1 << 20))
assert os.stat("/tmp/small.zip").st_size < 1 << 16
try:
    shutil.unpack_archive("/tmp/small.zip", "/tmp/unpacked")
except OSError as error:
    tell(error)
""",
        FULL,
    ),
)
VARIANTS = (
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
        "attributes",
        """
def one(number):
    open(f"/tmp/{number}", "w").close()
    os.setxattr(f"/tmp/{number}", "user.bomb", os.urandom(3500))
    if number > 1000:
        raise RuntimeError
until_refused(one)
hold()
""",
        ends("ENOSPC", "EOPNOTSUPP", "ENOTSUP", "EPERM", "RuntimeError", KILLED, OUT_OF_MEMORY),
    ),
)


@pytest.mark.timeout(600)
@parametrize(BOMBS, VARIANTS)
def test_disk_bombs_are_errors_inside(targets: Targets, isolation: str, bombs: Sequence[Bomb]) -> None:
    explode_all(targets, bombs, isolation)


def test_sparse_file_of_a_tebibyte_takes_little_memory_and_disk(service: LocalService, bombed: Sandbox) -> None:
    bombed.commands.run(["truncate", "-s", str(TEBIBYTE), "/workspace/sparse"])
    assert bombed.files.stat("/workspace/sparse").size_bytes == TEBIBYTE
    before = memory_bytes(service.pid)
    # Read by the piece, as far as one likes.
    with bombed.files.read("/workspace/sparse", "stream") as stream:
        taken = 0
        for piece in stream:
            assert not any(piece)
            taken += len(piece)
            if taken > 8 * MIB:
                break
    # Copied and packed inside: room and time are the sandbox's own.
    copied = bombed.commands.run("cp --sparse=never sparse copy", timeout=20)
    assert copied.reason == "timeout" or "No space left on device" in copied.stderr
    packed = bombed.commands.run(
        "rm -f copy; tar cf - sparse | head -c 4M | wc -c; tar cSf packed sparse && tar xSf packed -O | head -c 1M | wc -c", timeout=20
    )
    assert packed.stdout.startswith(f"{4 * MIB}\n")
    bombed.commands.run("rm -f /workspace/*")
    assert memory_bytes(service.pid) - before < FLAT_BYTES
    check_serves(bombed)


def test_tree_deeper_than_a_path_is_handled_or_refused(bombed: Sandbox, tmp_path: Path) -> None:
    """Made, looked at, packed, taken out and removed: no path reaches its end, and none is made that long."""
    dig = f"""
import os
for number in range({DEPTH}):
    os.mkdir("{FOLDER}")
    os.chdir("{FOLDER}")
open("file", "w").close()
"""
    files, below = bombed.files, f"/{FOLDER}"
    files.make_dir("/workspace/deep")
    assert bombed.commands.run(["python3", "-c", dig], cwd="/workspace/deep", timeout=120).exit_code == 0
    far = "/workspace/deep" + below * 500
    assert files.stat(far).kind == "directory"
    assert files.list(far)[0].name == FOLDER
    with pytest.raises(SandlotError) as refused:
        files.stat("/workspace/deep" + below * 600)
    assert refused.value.code is ErrorCode.PATH_INVALID
    with pytest.raises(SandlotError) as refused:
        files.download(far, tmp_path / "taken")
    assert refused.value.code is ErrorCode.PATH_INVALID, "what no path leads to is not left out silently"
    assert files.move("/workspace/deep", "/workspace/moved").kind == "directory"
    assert files.remove("/workspace/moved") == DEPTH + 2
    assert files.list("/workspace") == []
    check_serves(bombed)


def test_link_loops_are_errors(bombed: Sandbox, tmp_path: Path) -> None:
    bombed.commands.run(
        "mkdir tree && cd tree && ln -s itself itself && ln -s two one && ln -s one two && ln -s . here && ln -s .. above"
        " && mkdir in && ln -s ../in in/again"
        " && i=0; while [ $i -lt 60 ]; do ln -s link$((i + 1)) link$i; i=$((i + 1)); done; touch link60; mkfifo pipe"
    )
    for name in ("itself", "one", "link0"):
        for call in (
            lambda name=name: bombed.files.read(f"/workspace/tree/{name}"),
            lambda name=name: bombed.files.write(f"/workspace/tree/{name}/inner", "x"),
            lambda name=name: bombed.files.list(f"/workspace/tree/{name}"),
        ):
            with pytest.raises(SandlotError) as refused:
                call()
            # What is written below a link that leads nowhere finds no folder there.
            assert refused.value.code in {ErrorCode.PATH_LINK_LOOP, ErrorCode.PATH_NOT_DIRECTORY}, name
    assert len(bombed.files.list("/workspace/tree" + "/here" * 30)) == 68
    assert bombed.files.stat("/workspace/tree/in" + "/again" * 30).kind == "directory"
    bombed.files.download("/workspace/tree", tmp_path / "taken")
    assert (tmp_path / "taken" / "link60").exists()
    assert bombed.files.remove("/workspace/tree") == 70
    check_serves(bombed)
