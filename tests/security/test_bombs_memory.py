"""Promise: whoever uses up memory, in whatever form, ends himself or his own sandbox, for the reason that he ran out of memory.

Memory of the sandbox is all that its processes, its files in memory and its kernel objects take. On gVisor all of it belongs to
one process of the host, so that mostly the whole sandbox ends; in a container the host's kernel ends the process that took most.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.bombs import KILLED, OUT_OF_MEMORY, Bomb, Targets, check_serves, ends, explode_all, parametrize
from tests.support.localservice import LocalService

LIMITS = {"memory": "192M", "disk": "64M", "pids": 64}
SPENT = ends("MemoryError", "ENOMEM", KILLED, OUT_OF_MEMORY)

BOMBS = (
    Bomb("anonymous", "held = []\nuntil_refused(lambda number: held.append(bytearray(b'x' * (1 << 20))))\nhold()", SPENT),
    Bomb(
        "page tables",
        """
import mmap
area = mmap.mmap(-1, 1 << 42, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
for at in range(0, len(area), 2 << 20):
    area[at] = 1
tell("all of it")
""",
        SPENT,
    ),
    Bomb(
        "shared memory",
        """
file = open("/dev/shm/bomb", "wb", buffering=0)
os.unlink("/dev/shm/bomb")
until_refused(lambda number: file.write(bytes(1 << 20)))
hold()
""",
        ends("ENOSPC"),
    ),
    Bomb(
        "every file system that is memory",
        """
held = []
for line in open("/proc/mounts"):
    _, place, kind, *_ = line.split()
    if kind in {"tmpfs", "devtmpfs", "ramfs"}:
        try:
            held.append(open(place + "/.bomb", "wb", buffering=0))
            os.unlink(place + "/.bomb")
        except OSError:
            continue
        try:
            while held[-1].write(bytes(1 << 20)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                tell(error)
tell("ENOSPC")
hold()
""",
        SPENT | {"ENOSPC"},
        "root",
    ),
    Bomb(
        "pipe buffers",
        """
import fcntl
held = []
def one(number):
    reading, writing = os.pipe2(os.O_NONBLOCK)
    held.append((reading, writing))
    try:
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    except PermissionError:
        pass
    try:
        while os.write(writing, bytes(1 << 16)):
            pass
    except BlockingIOError:
        pass
until_refused(one)
hold()
""",
        SPENT | {"EMFILE", "ENFILE"},
    ),
    Bomb(
        "socket buffers",
        """
held = []
def one(number):
    pair = socket.socketpair()
    held.append(pair)
    for end in pair:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        try:
            while end.send(bytes(1 << 16)):
                pass
        except BlockingIOError:
            pass
until_refused(one)
hold()
""",
        SPENT | {"EMFILE", "ENFILE", "ENOBUFS"},
    ),
    Bomb(
        "system V shared memory",
        """
libc.shmat.restype = ctypes.c_void_p
def one(number):
    segment = libc.shmget(0, 8 << 20, 0o600 | 0o1000)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    place = libc.shmat(segment, None, 0)
    libc.shmctl(segment, 0, None)
    if place in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memset(place, 1, 8 << 20)
until_refused(one)
hold()
""",
        SPENT | {"ENOSPC", "EINVAL", "ENOSYS", "EPERM"},
    ),
)
VARIANTS = (
    Bomb("anonymous of root", "held = []\nuntil_refused(lambda number: held.append(bytearray(b'x' * (1 << 20))))\nhold()", SPENT, "root"),
    Bomb(
        "many small processes",
        """
for _ in range(40):
    if os.fork() == 0:
        held = bytearray(b"x" * (16 << 20))
        hold()
while True:
    pid, status = os.wait()
    if os.WIFSIGNALED(status):
        tell("child " + str(os.WTERMSIG(status)))
    else:
        tell("child MemoryError")
""",
        SPENT | {"child 9", "child MemoryError"},
    ),
    Bomb(
        "memory without a name",
        """
held = []
def one(number):
    held.append(os.memfd_create("bomb"))
    os.write(held[-1], bytes(1 << 20))
until_refused(one)
hold()
""",
        SPENT | {"ENOSPC", "EMFILE"},
    ),
)


@pytest.mark.timeout(600)
@parametrize(BOMBS, VARIANTS)
def test_memory_bombs_end_themselves_or_their_sandbox(targets: Targets, isolation: str, bombs: Sequence[Bomb]) -> None:
    explode_all(targets, bombs, isolation)


def test_files_on_the_disk_are_not_memory(service: LocalService) -> None:
    """Written, read again and mapped, more than there is memory: what the kernel keeps of them makes room by itself."""
    program = """
import mmap, os
with open("/tmp/big", "wb") as file:
    for _ in range(192):
        file.write(bytes(1 << 20))
with open("/tmp/big", "rb") as file:
    while file.read(1 << 20):
        pass
with open("/tmp/big", "r+b") as file, mmap.mmap(file.fileno(), 0) as area:
    for at in range(0, len(area), 4096):
        area[at] = 7
    area.flush()
print(os.stat("/tmp/big").st_size >> 20)
"""
    with service.create(memory="128M", disk="256M") as made:
        done = made.commands.run(["python3", "-c", program], timeout=120)
        assert (done.reason, done.stdout) == ("exited", "192\n"), done.stderr
        check_serves(made)
