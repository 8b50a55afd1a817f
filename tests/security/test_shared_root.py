"""Promise: nothing that is done inside changes the image that all sandboxes of it read, on the disk or in the host's page cache.

Sandboxes share an image's files; what one of them writes is its own. Each way is really tried by which a file that may only be
read was written all the same, and the whole image is compared after: contents, names, owners, modes, times.

- CVE-2016-5195 (Dirty COW, https://dirtycow.ninja): a private mapping is written while it is thrown away.
- CVE-2022-0847 (Dirty Pipe, https://dirtypipe.cm4all.com): a page of a file in a pipe takes what is written to the pipe.
- CVE-2026-31431 (Copy Fail): a cipher of AF_ALG works in place on pages that were spliced into its socket.
- CVE-2026-43284, CVE-2026-43500 (Dirty Frag): the same by ESP in UDP; RxRPC: test_kernel_interfaces.py.
- CVE-2021-3493, CVE-2023-2640, CVE-2023-32629, CVE-2023-0386 (OverlayFS): files of an upper layer keep capabilities or setuid
  bits that nobody was allowed to give.
- CVE-2020-16120 and the folders of a container engine's overlay: its layers reached by their own paths.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.images.store import ImageStore
from tests.support.attempts import PREAMBLE
from tests.support.cache import CACHE_DIR
from tests.support.inside import USERS, run_inside
from tests.support.localservice import TEMPLATE, LocalService

FILES = ("/usr/bin/env", "/.sandlot/guest.zip")
"""A program of the image, and what the guest is."""

WAYS = r"""
evil = b"evil!"
def pipe_of(fd, length=1):
    # A pipe whose buffers have all been used, and then one page of the file in it: what Dirty Pipe needs.
    reading, writing = os.pipe()
    size = fcntl.fcntl(writing, 1032)
    for left in range(0, size, 4096):
        os.write(writing, bytes(4096))
    for left in range(0, size, 4096):
        os.read(reading, 4096)
    offset = ctypes.c_longlong(0)
    call("splice", fd, ctypes.byref(offset), writing, None, length, 0)
    return reading, writing
def dirty_pipe(path):
    fd = os.open(path, os.O_RDONLY)
    reading, writing = pipe_of(fd)
    os.write(writing, evil)
def dirty_cow(path):
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    libc.mmap.restype = ctypes.c_void_p
    place = libc.mmap(None, ctypes.c_size_t(4096), 1, 2, fd, ctypes.c_long(0))
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "no mapping")
    ends = time.monotonic() + 0.1
    def drop():
        while time.monotonic() < ends:
            libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(4096), 4)
    thread = threading.Thread(target=drop)
    thread.start()
    with open("/proc/self/mem", "r+b", 0) as memory:
        while time.monotonic() < ends:
            memory.seek(place)
            memory.write(evil)
    thread.join()
def copy_fail(path):
    # AEAD with extended sequence numbers: the tag's place is written in the source's pages.
    alg = socket.socket(38, socket.SOCK_SEQPACKET, 0)
    alg.bind(("aead", "authencesn(hmac(sha256),cbc(aes))"))
    alg.setsockopt(279, 1, struct.pack("HHI", 8, 1, 16 << 24) + bytes(32 + 16))
    operation, _ = alg.accept()
    operation.sendmsg([bytes(8)], [(279, 3, struct.pack("I", 1)), (279, 2, struct.pack("I", 16) + bytes(16)), (279, 4, struct.pack("I", 8))], 0x8000)
    reading, writing = os.pipe()
    fd = os.open(path, os.O_RDONLY)
    offset = ctypes.c_longlong(0)
    call("splice", fd, ctypes.byref(offset), writing, None, 4, 0)
    call("splice", reading, None, operation.fileno(), None, 4, 0)
    operation.settimeout(2)
    operation.recv(4096)
def dirty_frag(path):
    # A file's page in a datagram that the same machine decrypts in place: encapsulated ESP (UDP_ENCAP, 100; ESPINUDP, 2).
    receiver, sender = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 4500))
    receiver.setsockopt(17, 100, 2)
    xfrm = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
    sender.connect(("127.0.0.1", 4500))
    fd = os.open(path, os.O_RDONLY)
    reading, writing = pipe_of(fd, 64)
    call("splice", reading, None, sender.fileno(), None, 64, 0)
def mapped_shared(path):
    mmap.mmap(os.open(path, os.O_RDONLY), 5, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)[:5] = evil
def made_writable_later(path):
    place = mmap.mmap(os.open(path, os.O_RDONLY), 5, mmap.MAP_SHARED, mmap.PROT_READ)
    # Where it lies, from what this process has mapped.
    with open("/proc/self/maps") as maps:
        start = [int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path)][-1]
    check(libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(4096), 3))
    ctypes.memmove(start, evil, 5)
def by_own_memory(path):
    place = mmap.mmap(os.open(path, os.O_RDONLY), 5, mmap.MAP_SHARED, mmap.PROT_READ)
    with open("/proc/self/maps") as maps:
        start = [int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path)][-1]
    with open("/proc/self/mem", "r+b", 0) as memory:
        memory.seek(start)
        memory.write(evil)
def splice_into(path):
    reading, writing = os.pipe()
    os.write(writing, evil)
    call("splice", reading, None, os.open(path, os.O_RDONLY), None, 5, 0)
def copy_range(path):
    with open("/tmp/evil", "wb") as file:
        file.write(evil)
    os.copy_file_range(os.open("/tmp/evil", os.O_RDONLY), os.open(path, os.O_RDONLY), 5)
def clone_range(path):
    fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40049409, os.open("/etc/group", os.O_RDONLY))
def opened_again(path):
    for flags in (os.O_RDONLY, os.O_PATH):
        fd = os.open(path, flags)
        os.write(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), evil)
def hard_link(path):
    os.link(path, "/etc/evil-link")
    with open("/etc/evil-link", "r+b") as file:
        file.write(evil)
def preallocate(path):
    check(libc.fallocate(os.open(path, os.O_RDONLY), 0, ctypes.c_long(0), ctypes.c_long(64)))
def immutable(path):
    fcntl.ioctl(os.open(path, os.O_RDONLY), 0x40086602, struct.pack("l", 0x10))
def attributes(path):
    for name in ("trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.origin", "security.evil"):
        attempt(os.setxattr, path, name, b"/../../../../etc")
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x2000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0))
def setuid(path):
    os.chmod(path, 0o6777)
def owner(path):
    os.chown(path, 1000, 1000)
def over(path):
    with open(path, "r+b") as file:
        file.write(evil)
def renamed(path):
    os.rename(path, path + "-evil")
def whiteout(path):
    os.unlink(path)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(0, 0))
ways = [dirty_pipe, dirty_cow, copy_fail, dirty_frag, mapped_shared, made_writable_later, by_own_memory, splice_into, copy_range, clone_range,
        opened_again, hard_link, preallocate, immutable, attributes, setuid, owner, over, renamed, whiteout]
"""

NEVER = ("dirty_pipe", "dirty_cow", "copy_fail", "dirty_frag", "mapped_shared", "made_writable_later", "by_own_memory", "splice_into")
"""Those that would write without ever asking for a copy: not even inside may the file be another one after them."""


@pytest.fixture
def image() -> Path:
    """The folder that the sandboxes' root file system is."""
    return ImageStore(CACHE_DIR).root(TEMPLATE).require_tree()


@pytest.fixture
def erofs_image() -> Path:
    """The file that the root file system is in gVisor. The first service on a machine uses the folder instead."""
    root = ImageStore(CACHE_DIR).root_image(TEMPLATE)
    assert root.image is not None
    return root.image


def test_shared_files_cannot_be_written_on_disk_or_in_the_page_cache(service: LocalService, sandbox: Sandbox, image: Path, erofs_image: Path) -> None:
    before, before_image = _state(image), _sha256(erofs_image)
    program = """
os.umask(0)
def content(path):
    with open(path, "rb") as file:
        return file.read()
told["outcomes"], told["changed"] = {}, []
for way in ways:
    for path in given["files"]:
        was = attempt(content, path)
        told["outcomes"][f"{way.__name__} {path}"] = outcome(f"{way.__name__}({path!r})")
        if attempt(content, path) != was:
            told["changed"].append(way.__name__)
"""
    with service.create() as vandal:
        for user in USERS:
            told = run_inside(vandal, PREAMBLE + WAYS + program, user=user, given={"files": FILES})
            assert [result for result in told["outcomes"].values() if result.startswith("broken")] == []
            if user == "root":
                assert "opened_again" in told["changed"], "root writes to its own copy, so the look was a real one"
                assert not set(NEVER) & set(told["changed"])
            else:
                assert told["changed"] == []
        vandal.commands.run("rm -rf --one-file-system /usr/bin /etc", user="root", timeout=60)
    assert (_state(image), _sha256(erofs_image)) == (before, before_image)
    sums = sandbox.commands.run(["sha256sum", *FILES], user="root")
    assert [line.split()[0] for line in sums.stdout.splitlines()] == [hashlib.sha256((image / name[1:]).read_bytes()).hexdigest() for name in FILES]


def test_setuid_bits_and_capabilities_raise_no_privilege(sandbox: Sandbox) -> None:
    """Setuid, setgid and capabilities that root inside gave a program are nobody's gain there; on the host the file is not even root's."""
    told = run_inside(
        sandbox,
        PREAMBLE
        + """
import shutil, subprocess
def as_user(command, **options):
    return subprocess.run(command, user=1000, group=1000, extra_groups=[], capture_output=True, text=True, cwd="/", **options)
for name, mode in (("suid", 0o4755), ("sgid", 0o2755), ("both", 0o6755), ("caps", 0o755)):
    path = f"/var/tmp/evil-{name}"
    shutil.copy("/usr/bin/python3.11", path)
    os.chmod(path, mode)
    if name == "caps":
        attempt(os.setxattr, path, "security.capability", struct.pack("<5I", 0x2000001, 0xFFFFFFFF, 0, 0xFFFFFFFF, 0))
    look = "import os; print(os.geteuid(), os.getegid(), [l for l in open('/proc/self/status') if 'CapEff' in l][0].split()[1])"
    done = as_user([path, "-I", "-c", look])
    told[name] = done.stdout.split() or done.stderr
    os.unlink(path)
memory = os.memfd_create("evil")
with open("/usr/bin/env", "rb") as file:
    os.write(memory, file.read())
os.fchmod(memory, 0o6755)
told["memory"] = as_user([f"/proc/self/fd/{memory}", "id", "-u"], pass_fds=[memory]).stdout.strip()
""",
        user="root",
    )
    powerless = ["1000", "1000", "0" * 16]
    assert {name: told[name] for name in ("suid", "sgid", "both", "caps")} == dict.fromkeys(("suid", "sgid", "both", "caps"), powerless)
    assert told["memory"] in {"1000", ""}


@pytest.mark.parametrize("user", USERS)
def test_layers_of_the_root_are_unreachable(sandbox: Sandbox, image: Path, user: str) -> None:
    """Neither the shared folder nor the sandbox's own one is there under any name that mountinfo tells, nor can it be mounted again."""
    told = run_inside(
        sandbox,
        """
import re
with open("/proc/self/mountinfo") as file:
    named = set(re.findall(r"(?:lowerdir|upperdir|workdir)\\+?=([^,\\s]+)", file.read()))
told["named"] = sorted(named)
told["reached"] = []
for path in [*named, given["image"]]:
    for start in ("", "/proc/1/root", "/proc/self/cwd/../../..", "/.."):
        for part in path.split(":"):
            if "got" in attempt(os.stat, start + part):
                told["reached"].append(start + part)
told["attributes"] = [name for path in ("/", "/etc", "/usr") for name in attempt(os.listxattr, path).get("got", []) if name.startswith("trusted.")]
told["set"] = [attempt(os.setxattr, "/tmp", f"trusted.overlay.{name}", b"y").get("error", "ok") for name in ("opaque", "redirect", "metacopy")]
told["work"] = [name for name in ("/work", "/upper", "/lower", "/merged", "/.upper", "/lost+found") if os.path.lexists(name)]
""",
        user=user,
        given={"image": str(image)},
    )
    assert (told["reached"], told["attributes"], told["work"]) == ([], [], [])
    assert "ok" not in told["set"]


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _state(root: Path) -> str:
    """Everything of a tree: names, kinds, owners, sizes, times, and the contents of the files that are attacked."""
    total = hashlib.sha256()
    for where, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            stat = os.lstat(f"{where}/{name}")
            total.update(f"{where}/{name} {stat.st_ino} {stat.st_mode} {stat.st_uid} {stat.st_gid} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    for name in FILES:
        total.update((root / name[1:]).read_bytes())
    return total.hexdigest()
