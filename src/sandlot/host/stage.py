"""The exec'd stage between the service and a sandbox's runtime, and the sandbox's keeper afterwards. A program of its own.

It is started with ``python -SI``, imports the standard library's built-in parts only, and talks to the service over its
standard input and output (see ``launch.py``). Its life:

1. It reads a *plan*, a list of operations that make it the place where the sandbox runs (control groups, a private mount
   namespace, the disk), carries it out and says ``ready``. Nothing of this outlives it: groups are the service's, the
   mounts are its own, the loop device clears itself.
2. It reads an *order*, starts the runtime, waits until that says that the sandbox runs, writes who it is (``live``) and
   says ``started``. From here on the service may die: nothing below needs it.
3. It *keeps* the sandbox: as the nearest child subreaper it is told the sandbox's exit status, which nobody else can be
   (prctl(2), PR_SET_CHILD_SUBREAPER), and writes it (``exit``); it drains the guest's standard error into a bounded log.

Laws:
- Silence of the service before the order means that it died: the stage ends, and with it all that it made.
- It never holds the link: both pipes are closed here once the runtime has them, so that the far end means the sandbox.
- Nothing of the service's environment or descriptors reaches the runtime.
"""

from __future__ import annotations

import ctypes
import fcntl
import marshal
import os
import resource
import select
import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest together
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# linux/sched.h, linux/mount.h, asm/unistd.h, linux/prctl.h, linux/loop.h, linux/fcntl.h, linux/signal.h; `signal` itself imports enum.
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 1024, 4096, 16384, 1 << 19
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 0x4C82, 0x4C0A, 4, 16
LOOP_FLAGS_OFFSET, LOOP_CONFIG_BYTES = 52, 304
SIGKILL, SIGPIPE, SIGXFSZ = 9, 13, 25
EBUSY, EINVAL = 16, 22

LENGTH_BYTES = 4
LOG_BYTES = 64 * 1024
"""The guest's log is two files of at most this size: the current one and the one before."""
CALM_OOM_SCORE = 0
"""The keeper is small and must outlive its sandbox by a moment."""

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> None:
    """Raise what errno says if a C call failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def called(result: int, what: str) -> int:
    """The result of a system call; raise what errno says if it failed."""
    checked(min(0, result), what)
    return int(result)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Attach a file system (see the manual page mount.2)."""
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    checked(_libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {target}")


# ------------------------------------------------------------------------------------------- the operations of a plan
def join(door: str) -> None:
    """Enter a control group: 0 means oneself (cgroups(7))."""
    handle = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, b"0")
    finally:
        os.close(handle)


def private_mounts() -> None:
    """A mount namespace of one's own: nothing mounted from now on is seen by the host, what the host unmounts goes here too."""
    checked(_libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "none", MS_REC | MS_SLAVE)


def tmpfs(target: str, options: str) -> None:
    """An empty file system in memory."""
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def mkdir(path: str, mode: int = 0o700) -> None:
    """A folder, and its parents, which are private."""
    os.makedirs(path, 0o700, exist_ok=True)
    os.chmod(path, mode)


def file(path: str, text: str, mode: int = 0o600) -> None:
    """A small file."""
    write(path, text)
    os.chmod(path, mode)


def bind(source: str, target: str, access: str) -> None:
    """Show a folder at another place, read-only ("ro") or not ("rw"). Devices and setuid bits in it are dead."""
    mount(source, target, "none", MS_BIND)
    read_only = MS_RDONLY if access == "ro" else 0
    mount("none", target, "none", MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | read_only)


def idmapped(source: str, target: str, first_id: int, ids: int) -> None:
    """Show a folder at another place, read-only, every owner 0 to ``ids`` as ``first_id`` and up (mount_setattr(2)). Linux 5.12."""
    namespace = user_namespace(first_id, ids)
    try:
        tree = called(_libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), OPEN_TREE_CLONE | os.O_CLOEXEC), "open_tree")
        try:
            flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_IDMAP
            attributes = b"".join(number.to_bytes(8, sys.byteorder) for number in (flags, 0, 0, namespace))  # struct mount_attr
            called(_libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, len(attributes)), f"idmapped mount of {source}")
            called(_libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH), f"move_mount {target}")
        finally:
            os.close(tree)
    finally:
        os.close(namespace)


def user_namespace(first_id: int, ids: int) -> int:
    """A descriptor of a user namespace with that mapping, user and group ids alike, that nobody is in (user_namespaces(7))."""
    ready_out, ready_in = os.pipe()
    done_out, done_in = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(done_in)
        status = _libc.unshare(CLONE_NEWUSER)
        os.write(ready_in, bytes((ctypes.get_errno() & 0xFF if status else 0,)))
        os.read(done_out, 1)
        os._exit(0)
    try:
        number = os.read(ready_out, 1)[0]
        if number:
            raise OSError(number, os.strerror(number), "user namespace")
        for file_name in ("uid_map", "gid_map"):
            handle = os.open(f"/proc/{child}/{file_name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, f"0 {first_id} {ids}".encode())
            finally:
                os.close(handle)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for handle in (ready_out, ready_in, done_out, done_in):
            os.close(handle)
        os.waitpid(child, 0)


def overlay(lower: str, disk_folder: str, target: str, owner: int) -> None:
    """A file system that shows ``lower`` and writes to ``disk_folder``; its root belongs to ``owner``.

    ``volatile``: it is never synced to the disk, because nobody reads the disk after a crash.
    """
    upper, work = f"{disk_folder}/upper", f"{disk_folder}/work"
    for path in (upper, work):
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - as / is everywhere
        os.chown(path, owner, owner)
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, f"lowerdir={lower},upperdir={upper},workdir={work},volatile")


def disk(image: str, target: str) -> None:
    """Mount an ext4 image through a loop device that clears itself when its last user ends (loop(4))."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        number, device = attach_loop(backing)
        try:
            # Discarding gives the host back what the guest deletes. noinit_itable: see mkfs_argv in disks.py. Not MS_NOEXEC: from
            # a file on it gVisor maps the programs and libraries that were written inside, which would end by SIGSEGV.
            mount(f"/dev/loop{number}", target, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, "discard,noinit_itable")
        finally:
            os.close(device)
    finally:
        os.close(backing)


def attach_loop(backing: int) -> tuple[int, int]:
    """A free loop device set up on an open file: its number and a descriptor of it, to be held until it is mounted."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Direct: otherwise every page is cached twice. Not every file system under the image can.
        flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO
        while True:
            number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, LOOP_CONFIGURE, loop_config(backing, flags))
                return number, device
            except OSError as error:
                os.close(device)
                if error.errno == EINVAL and flags & LO_FLAGS_DIRECT_IO:
                    flags &= ~LO_FLAGS_DIRECT_IO
                elif error.errno != EBUSY:  # EBUSY: somebody else was faster
                    raise
    finally:
        os.close(control)


def loop_config(backing: int, flags: int) -> bytes:
    """A ``struct loop_config`` (linux/loop.h): the file, a block size of 0 for the default, and the flags of its ``struct loop_info64``."""
    head = backing.to_bytes(4, sys.byteorder) + bytes(4)
    info = bytes(LOOP_FLAGS_OFFSET) + flags.to_bytes(4, sys.byteorder)
    return (head + info).ljust(LOOP_CONFIG_BYTES, b"\0")


def oom_score(value: str) -> None:
    """How gladly the kernel kills this process and those that it starts (proc(5), oom_score_adj)."""
    write("/proc/self/oom_score_adj", value)


def limit(name: str, soft: int, hard: int) -> None:
    """A resource limit, by its name in :mod:`resource`; not above the hard limit of one who may not raise it."""
    kind = getattr(resource, name)
    try:
        resource.setrlimit(kind, (soft, hard))
    except ValueError:
        ceiling = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (min(soft, ceiling), min(hard, ceiling)))


OPERATIONS: dict[str, Callable[..., None]] = {
    operation.__name__: operation for operation in (join, private_mounts, tmpfs, mkdir, file, bind, idmapped, overlay, disk, oom_score, limit)
}
SOURCES = {"bind", "disk", "idmapped"}
"""Operations whose first argument is looked up as soon as the mount namespace is private: later mounts may hide it, and a
folder found before belongs to the other namespace and cannot be bound (mount(2), EINVAL)."""


def carry_out(plan: list[tuple[Any, ...]]) -> None:
    """Do all of a plan, in order."""
    opened: dict[int, int] = {}
    try:
        for place, (name, *arguments) in enumerate(plan):
            if place in opened:
                arguments[0] = f"/proc/self/fd/{opened[place]}"
            OPERATIONS[name](*arguments)
            if name == private_mounts.__name__:
                for later, (other, *sources) in enumerate(plan):
                    if other in SOURCES:
                        opened[later] = os.open(sources[0], os.O_PATH | os.O_CLOEXEC)
    finally:
        for handle in opened.values():
            os.close(handle)


# ----------------------------------------------------------------------------------------------------- the conversation
def hear() -> dict[str, object] | None:
    """The next message of the service; None if it is gone."""
    head = read_exactly(LENGTH_BYTES)
    if head is None:
        return None
    body = read_exactly(int.from_bytes(head, "big"))
    # marshal: needs no import of its own, and both ends are one interpreter and trust each other.
    return None if body is None else marshal.loads(body)  # noqa: S302


def read_exactly(count: int) -> bytes | None:
    """That many bytes of standard input; None if it ends before."""
    text = b""
    while len(text) < count:
        more = os.read(0, count - len(text))
        if not more:
            return None
        text += more
    return text


def say(word: str, *fields: object) -> bool:
    """One line to the service; whether it is there to read it."""
    line = " ".join((word, *(str(field).replace("\n", "\\n") for field in fields)))
    try:
        os.write(1, line.encode(errors="backslashreplace") + b"\n")
    except OSError:
        return False
    return True


def write(path: str, text: str) -> None:
    """Overwrite a file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def publish(path: str, text: str) -> None:
    """Write a file so that readers see all of it or nothing."""
    write(path + ".new", text)
    os.rename(path + ".new", path)


class Log:
    """The guest's standard error: a pipe, drained into two files of bounded size."""

    def __init__(self, path: str) -> None:
        self.pipe, self.far_end = os.pipe()
        os.set_blocking(self.pipe, False)
        self.path = path
        self.file = self._open()
        self.size = 0
        self.tail = b""

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def drain(self) -> bool:
        """Take what is there, up to one pipe full; False once nobody can write any more."""
        try:
            text = os.read(self.pipe, LOG_BYTES)
        except BlockingIOError:
            return True
        if not text:
            return False
        self.tail = (self.tail + text)[-2000:]
        if self.size + len(text) > LOG_BYTES:
            try:
                os.rename(self.path, self.path + ".old")
            except OSError:
                pass
            os.close(self.file)
            self.file = self._open()
            self.size = 0
        try:
            self.size += os.write(self.file, text)
        except OSError:  # the host's disk is full; the guest must not wait for it
            pass
        return True


# --------------------------------------------------------------------------------------------------------- the sandbox
def start_ticks(pid: int) -> int:
    """When a process started (proc(5), field 22 of stat)."""
    handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(handle, 4096).rpartition(b")")[2].split()[19])
    finally:
        os.close(handle)


def spawn(order: dict[str, object], log: Log) -> int:
    """Start the runtime with the link as its standard input and output."""
    pipes = [os.open(str(order[name]), os.O_RDWR | os.O_CLOEXEC) for name in ("stdin", "stdout")]
    for pipe in pipes:
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, int(str(order["pipe_bytes"])))
        except OSError:  # an operator lowered fs.pipe-max-size
            pass
    argv = [str(word) for word in order["argv"]]  # type: ignore[attr-defined]
    try:
        # Python ignores these two signals; the runtime shall not inherit that.
        return os.posix_spawn(
            argv[0],
            argv,
            order["env"],  # type: ignore[arg-type]
            file_actions=[(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate((*pipes, log.far_end))],
            setsigdef=[SIGPIPE, SIGXFSZ],
        )
    finally:
        for handle in (*pipes, log.far_end):
            os.close(handle)


def wait_for(pid: int, log: Log) -> int:
    """Drain the log until a child ends; its exit code, negative for a signal."""
    handle = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(log.pipe, select.POLLIN)
    try:
        while True:
            ready = [number for number, _ in poller.poll()]
            if log.pipe in ready and not log.drain():
                poller.unregister(log.pipe)
            if handle in ready:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(handle)


def start(order: dict[str, object]) -> None:
    """Start the sandbox, tell the service, and keep it until it ends."""
    folder = str(order["folder"])
    checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
    log = Log(f"{folder}/guest.log")
    code = wait_for(spawn(order, log), log)
    log.drain()
    if code != 0:
        say("failed", f"exit code {code}: {log.tail.decode(errors='replace')}")
        return
    with_pid = os.open(str(order["pid_file"]), os.O_RDONLY | os.O_CLOEXEC)
    sandbox = int(os.read(with_pid, 32))
    os.close(with_pid)
    oom_score(str(CALM_OOM_SCORE))
    # The sandbox is a child of ours that nobody has waited for: its pid cannot have been given away.
    live = f"{sandbox} {start_ticks(sandbox)} {os.getpid()} {start_ticks(os.getpid())}"
    publish(f"{folder}/live", live)
    say("started", live)
    nowhere = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):
        os.dup2(nowhere, number)
    code = wait_for(sandbox, log)
    publish(f"{folder}/exit", str(code))
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def main() -> None:
    """Plan, order, keep."""
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    _libc.prctl(PR_SET_NAME, b"sandlot-keeper", 0, 0, 0)
    try:
        plan = hear()
        if plan is None:
            return
        carry_out(plan["operations"])  # type: ignore[arg-type]
        if not say("ready"):
            return
        order = hear()
        if order is not None:
            start(order)
    except OSError as error:
        say("failed", f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
