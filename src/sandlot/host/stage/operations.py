"""Operations of a plan. Each operation is one step in setting up the environment of a sandbox on the host.

The stage carries them out as root, for itself and the processes that it starts. Their effects end with these processes. A driver lists the operations
of a sandbox in a *plan*, which is carried out in order.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys

# Imports are relative, because the stage runs without the package sandlot.
from .syscalls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MNT_DETACH,
    MOUNT_ATTR_IDMAP,
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NOATIME,
    MS_NODEV,
    MS_NOSUID,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SHARED,
    MS_SLAVE,
    PR_SET_SECUREBITS,
    SECBIT_NO_SETUID_FIXUP,
    UMOUNT_NOFOLLOW,
    clone_mount,
    mount,
    move_mount,
    prctl,
    set_mount_attributes,
    unmount,
    unshare,
)

TYPE_CHECKING = False  # importing typing takes longer than all other imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# linux/loop.h, asm-generic/errno.h; `errno` itself is built in, but costs an import.
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 0x4C82, 0x4C0A, 4, 16
LOOP_FLAGS_OFFSET, LOOP_CONFIG_BYTES = 52, 304
ENOENT, ECHILD, EBUSY, EINVAL = 2, 10, 16, 22


def join(entry_file: str) -> None:
    """Enter a control group. Writing 0 moves this process (cgroups(7))."""
    handle = os.open(entry_file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, b"0")
    finally:
        os.close(handle)


def private_mounts() -> None:
    """Create a mount namespace. The host does not see later mounts; unmounts on the host take effect here too."""
    unshare(CLONE_NEWNS)
    mount("none", "/", "none", MS_REC | MS_SLAVE)


def tmpfs(target: str, options: str) -> None:
    """Mount an empty file system in memory."""
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def forget(target: str) -> None:
    """Unmount a path with everything below it, in this namespace only. Does nothing if nothing is mounted there."""
    try:
        unmount(target, MNT_DETACH | UMOUNT_NOFOLLOW)
    except OSError as error:
        if error.errno not in {EINVAL, ENOENT}:
            raise


def hub(target: str, count: int) -> None:
    """Create a read-only directory with the empty folders ``0`` to ``count - 1``, as mount points for later.

    Mounts propagate to namespaces that are created from this one as slaves, such as that of a runtime's file server (mount_namespaces(7)).
    """
    mkdir(target, 0o755)
    tmpfs(target, "mode=0755,size=64k")
    for number in range(count):
        mkdir(f"{target}/{number}", 0o755)
    mount("tmpfs", target, "tmpfs", MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    mount("none", target, "none", MS_SHARED)


def umask(mask: int) -> None:
    """Set the umask of this process and the processes that it starts (umask(2))."""
    os.umask(mask)


def mkdir(path: str, mode: int = 0o700) -> None:
    """Create a folder. Missing parents are created with mode 0700."""
    os.makedirs(path, 0o700, exist_ok=True)
    os.chmod(path, mode)


def file(path: str, text: str, mode: int = 0o600) -> None:
    """Create a small file."""
    write(path, text)
    os.chmod(path, mode)


def bind(source: str, target: str, access: str) -> None:
    """Mount a folder at another path, read-only ("ro") or writable ("rw"), without devices and setuid."""
    mount(source, target, "none", MS_BIND)
    read_only = MS_RDONLY if access == "ro" else 0
    mount("none", target, "none", MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | read_only)


def ids(target: str, first_id: int, count: int) -> None:
    """Create a user namespace that the file ``target`` keeps alive (namespaces(7)). Ids 0 to ``count - 1`` are mapped to ``first_id`` and up."""
    write(target, "")
    namespace = user_namespace(first_id, count)
    try:
        mount(f"/proc/self/fd/{namespace}", target, "none", MS_BIND)
    finally:
        os.close(namespace)


def user_namespace(first_id: int, count: int) -> int:
    """Return a descriptor of a new user namespace without processes, with this mapping of user and group ids (user_namespaces(7)).

    The namespace belongs to the user ``first_id``. The kernel counts some resources per user, such as inotify watches and queued signals, and also
    counts them for the owner of the namespace. So it counts them for each sandbox separately, and not for root of the host.
    """
    ready_out, ready_in = os.pipe()
    done_out, done_in = os.pipe()
    child = os.fork()
    if child == 0:
        # The child must end here in every case: it must not continue as a second stage.
        try:
            os.close(ready_out)
            os.close(done_in)
            number = 0
            try:
                # Capabilities are kept, for hosts on which only root may create user namespaces.
                prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
                os.setresuid(-1, first_id, -1)
                unshare(CLONE_NEWUSER)
            except OSError as error:
                number = error.errno or EINVAL
            os.write(ready_in, bytes((number & 0xFF,)))
            os.read(done_out, 1)
        finally:
            os._exit(0)
    # Close the child's ends, so that a read returns when the child has ended.
    os.close(ready_in)
    os.close(done_out)
    try:
        result = os.read(ready_out, 1)
        if not result:
            raise OSError(ECHILD, "the process that creates the namespace ended", "user namespace")
        number = result[0]
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
    """Mount a folder at another path, read-only, with its owners mapped as in a user namespace (mount_setattr(2)). Needs Linux 5.12."""
    handle = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        tree = clone_mount(source)
        try:
            set_mount_attributes(tree, source, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_IDMAP, namespace=handle)
            move_mount(tree, target)
        finally:
            os.close(tree)
    finally:
        os.close(handle)


def overlay(lower: str, disk_folder: str, target: str, owner: int) -> None:
    """Mount a file system that shows ``lower`` and writes to ``disk_folder``. Its root directory belongs to ``owner``.

    The option ``volatile`` turns off syncing, because no disk is read again after a crash.
    """
    upper, work = f"{disk_folder}/upper", f"{disk_folder}/work"
    for path in (upper, work):
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - the usual mode of /
        os.chown(path, owner, owner)
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, f"lowerdir={lower},upperdir={upper},workdir={work},volatile")


def disk(image: str, target: str) -> None:
    """Mount an ext4 image through a loop device that frees itself when its last user ends (loop(4))."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        mount_image(backing, target, "discard,noinit_itable")
    finally:
        os.close(backing)


def mount_image(backing: int, target: str, options: str) -> None:
    """Mount an open ext4 image through a new loop device.

    Pass ``discard``, which frees the host's space of deleted files, and ``noinit_itable`` (see ``disk_images``). MS_NOEXEC is not set: gVisor maps
    programs and libraries that were written inside from a file on this file system, and they would end by SIGSEGV.
    """
    number, device = attach_loop(backing)
    try:
        mount(f"/dev/loop{number}", target, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, options)
    finally:
        os.close(device)


def attach_loop(backing: int) -> tuple[int, int]:
    """Attach a free loop device to an open file. Return its number, and a descriptor to keep open until the device is mounted."""
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Without direct I/O every page would be cached twice. Not every file system supports it.
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
                elif error.errno != EBUSY:  # EBUSY: another process took the device
                    raise
    finally:
        os.close(control)


def loop_config(backing: int, flags: int) -> bytes:
    """Return a ``struct loop_config`` (linux/loop.h) with the file, the default block size, and the flags of its ``struct loop_info64``."""
    head = backing.to_bytes(4, sys.byteorder) + bytes(4)
    info = bytes(LOOP_FLAGS_OFFSET) + flags.to_bytes(4, sys.byteorder)
    return (head + info).ljust(LOOP_CONFIG_BYTES, b"\0")


def oom_score(value: str) -> None:
    """Set the out-of-memory score of this process and the processes that it starts (proc(5), oom_score_adj)."""
    write("/proc/self/oom_score_adj", value)


def limit(name: str, soft: int, hard: int) -> None:
    """Set a resource limit, named as in :mod:`resource`. If the hard limit cannot be raised, both limits are cut to the current hard limit."""
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
"""Operations whose first argument is opened as soon as the mount namespace is private. Later mounts may hide its path. A folder that was opened
earlier belongs to the other namespace and cannot be bound (mount(2), EINVAL)."""


def carry_out(plan: list[tuple[Any, ...]]) -> None:
    """Carry out the operations of a plan in order."""
    opened: dict[int, int] = {}
    try:
        for position, (name, *arguments) in enumerate(plan):
            if position in opened:
                arguments[0] = f"/proc/self/fd/{opened[position]}"
            OPERATIONS[name](*arguments)
            if name == private_mounts.__name__:
                for later, (other, *sources) in enumerate(plan):
                    if other in SOURCES:
                        opened[later] = os.open(sources[0], os.O_PATH | os.O_CLOEXEC)
    finally:
        for handle in opened.values():
            os.close(handle)


def write(path: str, text: str) -> None:
    """Write a file, replacing its content."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
