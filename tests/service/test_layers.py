"""Layers of files on both kinds of isolation: what a sandbox has on top of its image, packed and put over that image again."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.files.overlay import apply_overlay, pack_overlay
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.images.store import ImageStore
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, LimitError, SandlotError
from sandlot.model.specs import ProcessSpec, RootFs, RootKind, User
from sandlot.server.composition import RunningService
from sandlot.server.image_templates import ImageTemplates
from tests.support.saving import BASE, make

pytestmark = pytest.mark.slow

CHANGES = r"""
import os, socket
os.umask(0)
def put(path, data=b"x", mode=0o644):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)
put("/etc/debian_version", b"changed\n")                         # a file of the image, written
os.chmod("/etc/hosts", 0o600)                                   # one whose rights are others
os.rename("/etc/issue", "/etc/moved")                         # one that moved
os.unlink("/etc/profile")                                        # one that is gone
os.chown("/usr/bin/env", 1000, 1000)
import shutil
shutil.rmtree("/usr/share/zoneinfo", ignore_errors=True); put("/usr/share/zoneinfo", b"a file now")
shutil.rmtree("/etc/skel"); os.mkdir("/etc/skel", 0o700)         # a folder made anew
os.mkdir("/var/mine"); os.mkdir("/var/mine/closed"); put("/var/mine/closed/in", b"deep"); os.chmod("/var/mine/closed", 0)
put("/var/mine/suid", b"s", 0o4755); os.chown("/var/mine/suid", 1234, 4321); os.chmod("/var/mine/suid", 0o4755)
put("/var/mine/one", b"linked"); os.link("/var/mine/one", "/var/mine/two"); os.symlink("/nowhere", "/var/mine/dangling")
os.mkfifo("/var/mine/pipe", 0o622); socket.socket(socket.AF_UNIX).bind("/var/mine/socket")
put(b"/var/mine/line\nfeed \xff", b"odd name"); put("/var/mine/empty", b"")
with open("/var/mine/sparse", "wb") as file:
    file.truncate(300 << 20); file.seek(100 << 20); file.write(b"middle")
put("/workspace/big", bytes(range(256)) * 8192 * 3)
put("/tmp/passing", b"of everybody"); os.chown("/tmp/passing", 1000, 1000)
try:
    os.setxattr("/var/mine/one", "user.word", b"kept")
except OSError:
    pass
for path, when in (("/var/mine/one", 10**18 + 123456789), ("/var/mine", 9 * 10**17), ("/var/mine/dangling", 8 * 10**17)):
    os.utime(path, ns=(when, when), follow_symlinks=False)
"""

LOOK = r"""
import hashlib, json, os, stat
SKIPPED = {"/proc", "/sys", "/dev", "/.sandlot", "/run", "/usr/lib", "/usr/local", "/var/lib"}
MOVING = {"/", "/tmp"}
found, links = {}, {}
def look(path):
    about = os.lstat(path)
    row = [stat.S_IFMT(about.st_mode), stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid]
    if path not in MOVING:
        row.append(about.st_mtime_ns)
    if stat.S_ISLNK(about.st_mode):
        row.append(os.readlink(path))
    elif stat.S_ISREG(about.st_mode):
        row.append(about.st_size)
        if path.startswith(("/etc/", "/var/mine", "/workspace", "/tmp/")) and about.st_size < 10 << 20:
            row.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
        if about.st_nlink > 1 and path.startswith("/var/mine"):
            row.append(links.setdefault(about.st_ino, path))
        if path == "/var/mine/one":
            row.append([[name, os.getxattr(path, name).decode()] for name in os.listxattr(path)])
    found[os.fsencode(path).decode("latin-1")] = row
    if stat.S_ISDIR(about.st_mode):
        for name in os.listdir(path):
            inside = path.rstrip("/") + "/" + name
            if inside not in SKIPPED:
                look(inside)
look("/")
import base64, zlib
print(base64.b64encode(zlib.compress(json.dumps(found).encode())).decode())
"""


async def python(node: Node, sandbox: Sandbox, program: str) -> str:
    done = await node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("python3", "-c", program), user=User.ROOT, timeout_s=120))
    output = "".join(capture.text() for capture in (done.stdout, done.stderr))
    assert done.outcome.exit_code == 0, output[-2000:]
    return done.stdout.text()


async def looked(node: Node, sandbox: Sandbox) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(await python(node, sandbox, LOOK))))
    return found


async def root_of(service: RunningService, sandbox: Sandbox) -> RootFs:
    resolved = await ImageTemplates(ImageStore(service.settings.cache_dir)).at(sandbox.spec.template)
    assert resolved is not None
    assert resolved.root.kind is (RootKind.IMAGE if sandbox.spec.isolation == "gvisor" else RootKind.TREE)
    return resolved.root


@pytest.fixture(scope="module", params=["gvisor", "container"])
async def source(core_service: RunningService, request: pytest.FixtureRequest) -> Sandbox:
    sandbox = await make(core_service, replace(BASE, isolation=request.param))
    await python(core_service.node, sandbox, CHANGES)
    return sandbox


@pytest.fixture(scope="module")
async def layer(core_service: RunningService, source: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("layer") / "files"
    size = await pack_overlay(source, into, await root_of(core_service, source))
    assert 6 << 20 < into.stat().st_size < 9 << 20, "what is in it, no hole of the sparse file, and nothing of the image"
    assert size >= into.stat().st_size
    assert [each.name for each in into.parent.iterdir()] == [into.name]
    return into


C_LIBRARY = f"/usr/lib/{os.uname().machine}-linux-gnu/libc.so.6"
CHANGE_C_LIBRARY = f"""
import os, shutil
path = {C_LIBRARY!r}
before, new = os.stat(path), path + ".new"
data = open(path, "rb").read()
assert data.count(b"GNU C Library") == 1
shutil.copy(path, new)
with open(new, "wb") as file:
    file.write(data.replace(b"GNU C Library", b"My C Library!"))
os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
os.rename(new, path)
assert (os.stat(path).st_size, os.stat(path).st_mtime_ns) == (before.st_size, before.st_mtime_ns)
"""


async def test_changed_c_library_is_in_the_overlay_whatever_its_times_are(core_service: RunningService, tmp_path: Path) -> None:
    """The guest copies the C library of an EROFS image when it boots. That copy alone is not packed."""
    node, source = core_service.node, await make(core_service, replace(BASE, isolation="gvisor"))
    root = await root_of(core_service, source)
    await pack_overlay(source, tmp_path / "unchanged", root)
    assert (tmp_path / "unchanged").stat().st_size < 1 << 20
    await python(node, source, CHANGE_C_LIBRARY)
    await pack_overlay(source, tmp_path / "changed", root)
    copy = await make(core_service, replace(BASE, isolation="gvisor"))
    await apply_overlay(copy, tmp_path / "changed")
    assert await python(node, copy, f"print(open({C_LIBRARY!r}, 'rb').read().count(b'My C Library!'))") == "1\n"


async def test_overlay_restores_all_differences_and_a_cut_one_is_refused(
    core_service: RunningService, source: Sandbox, layer: Path, tmp_path: Path
) -> None:
    other = await make(core_service, replace(BASE, isolation=source.spec.isolation))
    await python(core_service.node, other, "open('/etc/of-the-new-one', 'w').close()")
    whole = await asyncio.to_thread(layer.read_bytes)
    for number, broken in enumerate((b"", whole[:3], whole[: len(whole) // 2], whole[:-1], b"\0\0\0\x05hello", b"\xff" * 64)):
        (tmp_path / str(number)).write_bytes(broken)
        with pytest.raises(ConflictError, match="incomplete"):
            await apply_overlay(other, tmp_path / str(number))
    await apply_overlay(other, layer)
    was, now = await looked(core_service.node, source), await looked(core_service.node, other)
    assert now.pop("/etc/of-the-new-one")
    was.pop("/var/mine/socket")
    assert {name: (was.get(name), now.get(name)) for name in {*was, *now} if was.get(name) != now.get(name)} == {}
    assert "/etc/profile" not in now
    sparse = json.loads(
        await python(core_service.node, other, "import os; about = os.stat('/var/mine/sparse'); print([about.st_blocks * 512, about.st_size])")
    )
    assert sparse[1] == 300 << 20
    assert sparse[0] < 10 << 20 or source.spec.isolation == "gvisor", "it knows of no holes, and yet has room for this one"
    # What was restored is as good a source as the first.
    again = tmp_path / "again"
    await pack_overlay(other, again, await root_of(core_service, other))
    sizes = [await asyncio.to_thread(lambda path=path: path.stat().st_size) for path in (layer, again)]  # type: ignore[misc]
    assert abs(sizes[0] - sizes[1]) < 64 << 10
    await core_service.internals.manager.kill(OPERATOR, other.id)


@pytest.mark.parametrize("source", ["gvisor", pytest.param("container", marks=pytest.mark.soak)], indirect=True)
async def test_one_that_has_no_room_says_so(core_service: RunningService, source: Sandbox, layer: Path) -> None:
    limits = replace(BASE.limits, disk_bytes=16 << 20)
    small = await make(core_service, replace(BASE, isolation=source.spec.isolation, limits=limits))
    await python(core_service.node, small, "open('/workspace/fill', 'wb').write(bytes(13 << 20))")
    with pytest.raises(LimitError):
        await apply_overlay(small, layer)
    await core_service.internals.manager.kill(OPERATOR, small.id)
    with pytest.raises(SandlotError):
        await apply_overlay(small, layer)
