"""Promise: whoever takes all descriptors, watches, terminals or queues that he can get is refused, and nobody else is short of any.

On gVisor the objects are the sandbox's own, paid from its memory: where it has no number for them, none is asked of it but that.
"""

from __future__ import annotations

import pytest

from tests.support.bombs import KILLED, OUT_OF_MEMORY, Bomb, Targets, check_serves, ends, explode_all, set_off
from tests.support.localservice import LocalService

RAISED = """
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
except (OSError, ValueError):
    pass
held = []
until_refused(lambda number: held.append(os.open("/dev/null", os.O_RDONLY)))
hold()
"""
IN_MANY = """
import select
refused, refuse = os.pipe()
for number in range(4):
    if os.fork() == 0:
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError:
            os.write(refuse, b"x")
            hold()
for number in range(4):  # until each of them is refused, or time is up
    if not select.select([refused], [], [], 3)[0]:
        break
    os.read(refused, 1)
tell("done")
hold()
"""
SENT = """
# Descriptors in flight belong to no process: they lie in the buffer of a socket (unix(7), SCM_RIGHTS).
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
ours.setblocking(False)
null = os.open("/dev/null", os.O_RDONLY)
held = [ours, theirs]
def one(number):
    try:
        socket.send_fds(held[-2], [b"x"], [null] * 200)
    except BlockingIOError:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[0].setblocking(False)
        held.extend(pair)
    if number > 3000:
        raise RuntimeError
until_refused(one)
hold()
"""
TERMINALS = """
held = []
def one(number):
    held.append(os.openpty())
    if number > 4200:
        raise RuntimeError
until_refused(one)
hold()
"""
INOTIFY = """
instances = []
def instance(number):
    made = libc.inotify_init1(0)
    if made < 0:
        raise OSError(ctypes.get_errno(), "inotify_init1")
    instances.append(made)
    if number > 2000:
        raise RuntimeError
until_refused(instance)
hold()
"""
WATCHES = """
os.makedirs("/tmp/watched", exist_ok=True)
queue = libc.inotify_init1(0)
def one(number):
    name = f"/tmp/watched/{number}"
    os.mkdir(name)
    if libc.inotify_add_watch(queue, name.encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), "inotify_add_watch")
    if number > 1000:
        raise RuntimeError
until_refused(one)
hold()
"""
EVENTS = """
# A queue of events that nobody reads (inotify(7): max_queued_events).
queue = libc.inotify_init1(0)
open("/tmp/noisy", "w").close()
libc.inotify_add_watch(queue, b"/tmp/noisy", 0xFFF)
for number in range(20000):  # max_queued_events is 16384
    os.utime("/tmp/noisy")
tell("done")
hold()
"""
EPOLLS = """
import select
held = []
first = select.epoll()
def one(number):
    held.append(select.epoll())
    for other in held[-50:-1]:
        try:
            held[-1].register(other.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ELOOP):
                raise
    if number > 300:
        raise RuntimeError
until_refused(one)
hold()
"""
SEMAPHORES = """
def one(number):
    if libc.semget(0, 250, 0o600 | 0o1000) < 0:
        raise OSError(ctypes.get_errno(), "semget")
    if number > 300:
        raise RuntimeError
until_refused(one)
hold()
"""
MESSAGES = """
queue = libc.msgget(0, 0o600 | 0o1000)
if queue < 0:
    tell(OSError(ctypes.get_errno(), "msgget"))
    hold()
message = ctypes.create_string_buffer(b"\\1" + bytes(7) + bytes(4096))
def one(number):
    if libc.msgsnd(queue, message, 4096, 0o4000) < 0:
        raise OSError(ctypes.get_errno(), "msgsnd")
until_refused(one)
hold()
"""
CONNECTIONS = """
server = socket.create_server(("127.0.0.1", 0), backlog=4096)
held = []
def one(number):
    client = socket.socket()
    client.settimeout(0.5)
    client.connect(server.getsockname())
    held.append((client, server.accept()[0]))
    if number > 500:
        raise RuntimeError
until_refused(one)
hold()
"""

LIMITS = {"memory": "384M", "disk": "16M", "pids": 64}
SPENT = ends("EMFILE", "ENFILE", "ENOMEM", "MemoryError", KILLED, OUT_OF_MEMORY)
BOMBS = (
    Bomb("descriptors of root, limit raised", RAISED, SPENT, "root"),
    Bomb("descriptors in flight", SENT, SPENT | {"ETOOMANYREFS", "RuntimeError", "ENOBUFS"}),
    Bomb("watches", WATCHES, SPENT | {"ENOSPC", "RuntimeError"}),
    Bomb("events that nobody reads", EVENTS, SPENT | {"done"}),
    Bomb("epolls of epolls", EPOLLS, SPENT | {"ENOSPC", "RuntimeError"}),
    Bomb("semaphores", SEMAPHORES, SPENT | {"ENOSPC", "ENOSYS", "EPERM", "RuntimeError"}),
    Bomb("message queues", MESSAGES, SPENT | {"EAGAIN", "ENOSYS", "EPERM"}),
    Bomb("connections to itself", CONNECTIONS, SPENT | {"TimeoutError", "EADDRNOTAVAIL", "RuntimeError", "ETIMEDOUT"}),
)
COUNTED_BY_THE_HOST = (
    Bomb("descriptors of many processes", IN_MANY, SPENT | {"done"}),
    Bomb("terminals", TERMINALS, SPENT | {"ENOSPC"}, differs=(("gvisor", SPENT | {"RuntimeError"}),)),
    Bomb("inotify", INOTIFY, SPENT, differs=(("gvisor", SPENT | {"RuntimeError"}),)),
)


@pytest.mark.timeout(600)
def test_descriptor_bombs_end_themselves_or_their_sandbox(targets: Targets, isolation: str) -> None:
    explode_all(targets, BOMBS, isolation)


def test_objects_counted_by_the_host_stay_available_to_other_sandboxes(service: LocalService, targets: Targets, isolation: str) -> None:
    """Terminals, inotify instances and open files are counted by the host's kernel as well (pts(4), inotify(7), proc(5))."""
    one_each = "import ctypes, os; os.openpty(); print(ctypes.CDLL(None).inotify_init1(0) >= 0, os.open('/dev/null', os.O_RDONLY) >= 0)"
    held = []
    for bomb in COUNTED_BY_THE_HOST:
        word, handle = set_off(targets.get(), bomb)
        assert word in bomb.ends_on(isolation), f"{bomb.name} on {isolation}: {word}"
        held.append(handle)
    with service.create(memory="128M", disk="16M") as other:
        assert other.commands.run(["python3", "-c", one_each], timeout=60).stdout == "True True\n"
    for handle in filter(None, held):
        handle.kill()
    check_serves(targets.get())
