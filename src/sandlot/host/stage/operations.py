"""The operations of a plan: what turns a process into the place where a sandbox runs.

Each is one step on the host, done by root, for the process that it runs in and what that starts; none outlives them. The list of
operations for a sandbox is a *plan*, made by its driver and carried out in order.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import sys

TYPE_CHECKING = False  # typing takes longer to import than the rest together
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# linux/sched.h, linux/mount.h, asm/unistd.h, linux/prctl.h, linux/securebits.h, linux/loop.h, linux/fcntl.h.
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 1, 2, 4, 32, 1024, 4096, 16384, 1 << 19, 1 << 20
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP = 28, 4
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 0x4C82, 0x4C0A, 4, 16
LOOP_FLAGS_OFFSET, LOOP_CONFIG_BYTES = 52, 304
ENOENT, ECHILD, EBUSY, EINVAL = 2, 10, 16, 22

libc = ctypes.CDLL(None, use_errno=True)


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
    checked(libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {target}")


def join(door: str) -> None:
    """Enter a control group: 0 means oneself (cgroups(7))."""
    handle = os.open(door, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, b"0")
    finally:
        os.close(handle)


def private_mounts() -> None:
    """A mount namespace of one's own: nothing mounted from now on is seen by the host, what the host unmounts goes here too."""
    checked(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "none", MS_REC | MS_SLAVE)


def tmpfs(target: str, options: str) -> None:
    """An empty file system in memory."""
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def forget(target: str) -> None:
    """Take away what is mounted at a place, with all below it, from this process's view alone; nothing where nothing is."""
    if libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW) != 0 and (number := ctypes.get_errno()) not in {EINVAL, ENOENT}:
        raise OSError(number, os.strerror(number), target)


def hub(target: str, count: int) -> None:
    """A place for what is mounted later: empty folders ``0`` to ``count`` - 1 that nobody can write to, and whose mounts others receive.

    Who has a view of its own from now on that is a slave of this one, as a runtime's file server has, sees what is mounted there
    (mount_namespaces(7)).
    """
    mkdir(target, 0o755)
    tmpfs(target, "mode=0755,size=64k")
    for number in range(count):
        mkdir(f"{target}/{number}", 0o755)
    mount("tmpfs", target, "tmpfs", MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    mount("none", target, "none", MS_SHARED)


def umask(mask: int) -> None:
    """What nobody is allowed of what this process, and what it starts, makes from now on (umask(2))."""
    os.umask(mask)


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


def ids(target: str, first_id: int, count: int) -> None:
    """A user namespace for the sandbox, kept by a file at ``target`` (namespaces(7)): ids 0 to ``count`` - 1 are ``first_id`` and up."""
    write(target, "")
    namespace = user_namespace(first_id, count)
    try:
        mount(f"/proc/self/fd/{namespace}", target, "none", MS_BIND)
    finally:
        os.close(namespace)


def user_namespace(first_id: int, count: int) -> int:
    """A descriptor of a user namespace with that mapping, user and group ids alike, that nobody is in (user_namespaces(7)).

    It belongs to ``first_id``: what the kernel counts for each user, such as watches and queued signals, it counts for the
    owner of a namespace as well, and so for each sandbox by itself and never for root of the host.
    """
    ready_out, ready_in = os.pipe()
    done_out, done_in = os.pipe()
    child = os.fork()
    if child == 0:
        # Whatever happens here, nothing of it goes on as a second stage.
        try:
            os.close(ready_out)
            os.close(done_in)
            # Capabilities stay, so that a host where only root may make user namespaces will do.
            failed = libc.prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) or libc.setresuid(-1, first_id, -1) or libc.unshare(CLONE_NEWUSER)
            os.write(ready_in, bytes((ctypes.get_errno() & 0xFF if failed else 0,)))
            os.read(done_out, 1)
        finally:
            os._exit(0)
    # What the child alone holds is at its end when the child is.
    os.close(ready_in)
    os.close(done_out)
    try:
        said = os.read(ready_out, 1)
        if not said:
            raise OSError(ECHILD, "its process ended", "user namespace")
        number = said[0]
        if number:
            raise OSError(number, os.strerror(number), "user namespace")
        for file_name in ("uid_map", "gid_map"):
            handle = os.open(f"/proc/{child}/{file_name}", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, f"0 {first_id} {count}".encode())
            finally:
                os.close(handle)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for handle in (ready_out, done_in):
            os.close(handle)
        os.waitpid(child, 0)


def idmapped(source: str, target: str, namespace: str) -> None:
    """Show a folder at another place, read-only, its owners moved as that user namespace says (mount_setattr(2)). Linux 5.12."""
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        tree = called(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), OPEN_TREE_CLONE | os.O_CLOEXEC), "open_tree")
        try:
            flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_IDMAP
            attributes = b"".join(number.to_bytes(8, sys.byteorder) for number in (flags, 0, 0, handle))  # struct mount_attr
            called(libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, len(attributes)), f"idmapped mount of {source}")
            called(libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH), f"move_mount {target}")
        finally:
            os.close(tree)
    finally:
        os.close(handle)


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
    operation.__name__: operation
    for operation in (join, private_mounts, forget, tmpfs, hub, umask, mkdir, file, bind, ids, idmapped, overlay, disk, oom_score, limit)
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


def write(path: str, text: str) -> None:
    """Overwrite a file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
