"""Operations of a plan. Each operation is one step in setting up the environment of a sandbox on the host.

A driver lists the operations for a sandbox in a *plan*. The stage carries out the operations in this order, as root, for itself and the processes
that it starts. When these processes have ended, the kernel removes their mounts and namespaces and frees their loop devices.
"""

from __future__ import annotations

import fcntl
import os
import resource
import sys

# Imports are relative, because the stage runs without the package sandlot.
from .network import card, loopback_card, private_network
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
    set_seccomp_filter,
    unmount,
    unshare,
)

TYPE_CHECKING = False  # importing typing takes longer than all other imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Constants of linux/loop.h and asm-generic/errno.h. Importing `errno` for the latter would take time.
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO = 0x4C82, 0x4C0A, 4, 16
LOOP_FLAGS_OFFSET, LOOP_CONFIG_BYTES = 52, 304
ENOENT, ECHILD, EBUSY, EINVAL = 2, 10, 16, 22
# Constants of linux/bpf_common.h, linux/seccomp.h, linux/audit.h and linux/membarrier.h; the numbers are those of x86-64.
BPF_LOAD, BPF_JUMP_EQUAL, BPF_RETURN = 0x20, 0x15, 0x06
SECCOMP_NUMBER_OFFSET, SECCOMP_ARCH_OFFSET, SECCOMP_ARGUMENT_OFFSET = 0, 4, 16
SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW = 0x00050000, 0x7FFF0000
AUDIT_ARCH_X86_64, SYS_MEMBARRIER, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED = 0xC000003E, 324, 16
STAT_BLOCK_BYTES = 512
"""Unit of ``st_blocks`` (stat(2))."""


def join(entry_file: str) -> None:
    """Move this process to a control group. ``entry_file`` is ``tasks`` or ``cgroup.procs`` of the group; writing 0 moves the writer (cgroups(7))."""
    handle = os.open(entry_file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, b"0")
    finally:
        os.close(handle)


def private_mounts() -> None:
    """Enter a new mount namespace. The host does not see mounts of this namespace. Mounts and unmounts of the host take effect in this namespace."""
    unshare(CLONE_NEWNS)
    mount("none", "/", "none", MS_REC | MS_SLAVE)


def tmpfs(target: str, options: str) -> None:
    """Mount an empty file system in memory at ``target``. ``options`` are mount options of tmpfs, separated by commas."""
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def forget(target: str) -> None:
    """Unmount the path ``target`` and all mounts below it, in this mount namespace only. Does nothing if ``target`` is not a mount point."""
    try:
        unmount(target, MNT_DETACH | UMOUNT_NOFOLLOW)
    except OSError as error:
        if error.errno not in {EINVAL, ENOENT}:
            raise


def hub(target: str, count: int) -> None:
    """Create a read-only directory with the empty folders ``0`` to ``count - 1``, at which volumes can be mounted later.

    Later mounts propagate to the mount namespaces that are created as slaves of this mount namespace, such as the namespace of a runtime's file
    server (mount_namespaces(7)).
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
    """Create a folder, or change the mode of an existing folder. Missing parents are created with mode 0700."""
    os.makedirs(path, 0o700, exist_ok=True)
    os.chmod(path, mode)


def file(path: str, text: str, mode: int = 0o600) -> None:
    """Create or replace a small file with a text, and set its mode."""
    write(path, text)
    os.chmod(path, mode)


def bind(source: str, target: str, access: str) -> None:
    """Mount the folder ``source`` at ``target`` too. Device files and setuid bits have no effect there. ``access`` is "ro" (read-only) or "rw"."""
    mount(source, target, "none", MS_BIND)
    read_only = MS_RDONLY if access == "ro" else 0
    mount("none", target, "none", MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV | read_only)


def ids(target: str, first_id: int, count: int) -> None:
    """Create a user namespace and mount the namespace on the new file ``target``, which keeps the namespace alive (namespaces(7)).

    The ids 0 to ``count - 1`` in the namespace are mapped to the ids of the host from ``first_id`` on.
    """
    write(target, "")
    namespace = user_namespace(first_id, count)
    try:
        mount(f"/proc/self/fd/{namespace}", target, "none", MS_BIND)
    finally:
        os.close(namespace)


def user_namespace(first_id: int, count: int) -> int:
    """Create a user namespace without processes and return a descriptor of the namespace (user_namespaces(7)).

    The namespace belongs to the user ``first_id``, not to root. The kernel limits some resources for each user, such as inotify watches and queued
    signals. What processes in a namespace use also counts against the limit of the user who owns the namespace. Since each namespace has another
    owner, one sandbox cannot use up the limit of another sandbox.

    Args:
        first_id: User and group id of the host to which the id 0 in the namespace is mapped.
        count: Number of ids that are mapped.
    """
    ready_out, ready_in = os.pipe()
    done_out, done_in = os.pipe()
    child = os.fork()
    if child == 0:
        # The child must call os._exit even after an exception, or the child would continue as a second stage.
        try:
            os.close(ready_out)
            os.close(done_in)
            number = 0
            try:
                # This bit keeps the capabilities when the user id changes. Without them, unshare would fail on hosts where only root may create user
                # namespaces.
                prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
                os.setresuid(-1, first_id, -1)
                unshare(CLONE_NEWUSER)
            except OSError as error:
                number = error.errno or EINVAL
            os.write(ready_in, bytes((number & 0xFF,)))
            os.read(done_out, 1)
        finally:
            os._exit(0)
    # Close the child's ends of both pipes in this process, so that os.read below returns if the child ends without a result.
    os.close(ready_in)
    os.close(done_out)
    try:
        result = os.read(ready_out, 1)
        if not result:
            raise OSError(ECHILD, "the process that creates the namespace ended", "cannot create a user namespace")
        number = result[0]
        if number:
            raise OSError(number, os.strerror(number), "cannot create a user namespace")
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
    """Mount the folder ``source`` at ``target`` too, read-only, with owners of files mapped by a user namespace. Needs Linux 5.12 (mount_setattr(2)).

    Args:
        source: Path of the folder.
        target: Path of the mount point.
        namespace: Path of the file that :func:`ids` created.
    """
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
    """Mount an overlay at ``target`` that shows the folder ``lower`` and stores all changes in ``disk_folder``.

    The user and group ``owner`` own the root directory of the overlay. The option ``volatile`` turns off syncing, because the disk of a sandbox is
    never read again after a crash.
    """
    upper, work = f"{disk_folder}/upper", f"{disk_folder}/work"
    for path in (upper, work):
        os.mkdir(path)
        os.chmod(path, 0o755)  # noqa: S103 - the usual mode of /
        os.chown(path, owner, owner)
    mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, f"lowerdir={lower},upperdir={upper},workdir={work},volatile")


def disk(image: str, target: str) -> None:
    """Mount an ext4 image file through a new loop device, which the kernel frees after the last unmount (loop(4))."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        mount_image(backing, target, "noinit_itable")
    finally:
        os.close(backing)


def mount_image(backing: int, target: str, options: str) -> None:
    """Mount an open ext4 image file through a new loop device.

    MS_NOEXEC is not set: gVisor stores programs and libraries that were written inside the sandbox in a file on this file system, and maps them from
    there. With MS_NOEXEC, SIGSEGV would kill these programs.

    Args:
        backing: Descriptor of the image file, open for reading and writing.
        target: Path of the mount point.
        options: Mount options of ext4, without those of :func:`image_options`. File systems that ``disk_images`` creates need ``noinit_itable``.
    """
    number, device = attach_loop(backing)
    try:
        mount(f"/dev/loop{number}", target, "ext4", MS_NOSUID | MS_NODEV | MS_NOATIME, image_options(backing, options))
    finally:
        os.close(device)


def image_options(backing: int, options: str) -> str:
    """Add ``discard`` to the mount options of an image file, unless the file is allocated in full.

    With ``discard``, deleting a file in the file system also frees its space on the host. An allocated image must keep this space.
    """
    return options if is_allocated(os.fstat(backing)) else f"discard,{options}"


def is_allocated(status: os.stat_result) -> bool:
    """Return whether a file has disk space for all its blocks, so that writing to the file needs no more space."""
    return status.st_blocks * STAT_BLOCK_BYTES >= status.st_size


def attach_loop(backing: int) -> tuple[int, int]:
    """Attach a free loop device to an open file.

    Args:
        backing: Descriptor of the file.

    Returns:
        Number of the device, and a descriptor of the device. The caller must keep the descriptor open until the device is mounted.
    """
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        # Direct I/O avoids caching every page twice. If the file system does not support direct I/O, the flag is dropped below.
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
    """Return the bytes of a ``struct loop_config`` (linux/loop.h) for a file, with the default block size.

    Args:
        backing: Descriptor of the file.
        flags: ``LO_FLAGS`` constants.
    """
    head = backing.to_bytes(4, sys.byteorder) + bytes(4)
    info = bytes(LOOP_FLAGS_OFFSET) + flags.to_bytes(4, sys.byteorder)
    return (head + info).ljust(LOOP_CONFIG_BYTES, b"\0")


def oom_score(value: str) -> None:
    """Set the oom_score_adj of this process (proc(5)). Processes that this process starts later inherit the value."""
    write("/proc/self/oom_score_adj", value)


def limit(name: str, soft: int, hard: int) -> None:
    """Set a resource limit of this process. If the hard limit cannot be raised, neither value is set higher than the current hard limit.

    Args:
        name: Name of the limit in :mod:`resource`, for example ``RLIMIT_NOFILE``.
        soft: New soft limit.
        hard: New hard limit.
    """
    kind = getattr(resource, name)
    try:
        resource.setrlimit(kind, (soft, hard))
    except ValueError:
        ceiling = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (min(soft, ceiling), min(hard, ceiling)))


def skip_membarrier() -> None:
    """Let membarrier(2) succeed without effect where a process only registers for private expedited barriers.

    The filter applies to this process and to those that it starts later. Without the registration, the kernel refuses these barriers with EPERM.
    """
    set_seccomp_filter(
        b"".join(
            code.to_bytes(2, "little") + bytes((0, skipped)) + value.to_bytes(4, "little")
            for code, skipped, value in (
                (BPF_LOAD, 0, SECCOMP_ARCH_OFFSET),
                (BPF_JUMP_EQUAL, 5, AUDIT_ARCH_X86_64),
                (BPF_LOAD, 0, SECCOMP_NUMBER_OFFSET),
                (BPF_JUMP_EQUAL, 3, SYS_MEMBARRIER),
                (BPF_LOAD, 0, SECCOMP_ARGUMENT_OFFSET),
                (BPF_JUMP_EQUAL, 1, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED),
                (BPF_RETURN, 0, SECCOMP_RET_ERRNO),
                (BPF_RETURN, 0, SECCOMP_RET_ALLOW),
            )
        )
    )


OPERATIONS: dict[str, Callable[..., None]] = {
    operation.__name__: operation
    for operation in (
        *(join, private_mounts, forget, tmpfs, hub, umask, mkdir, file, bind, ids, idmapped, overlay),
        *(disk, oom_score, limit, skip_membarrier, private_network, card, loopback_card),
    )
}
SOURCES = {"bind", "disk", "idmapped"}
"""Operations whose first argument is a path of the host. The path is opened just after the operation ``private_mounts``. Later operations may hide
the path under a mount. A folder that was opened earlier would belong to the former namespace and could not be bound (mount(2), EINVAL)."""


def carry_out(plan: list[tuple[Any, ...]]) -> None:
    """Carry out the operations of a plan in order. Each operation is a name from :data:`OPERATIONS`, followed by the arguments."""
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
    """Write a text to a file, replacing the content of an existing file."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)
