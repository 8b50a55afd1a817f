"""System calls for which Python 3.11 has no functions. No other module of the service uses ctypes.

Every function raises OSError if the system call fails. This module imports only the standard library, because the stage imports it too.
"""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_FS = 0x200
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
"""linux/sched.h"""
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC = 1, 2, 4, 32, 1024, 4096, 16384
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_ATIME, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x70, 0x00100000
"""linux/mount.h"""
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_SECCOMP, PR_SET_SECUREBITS, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 15, 22, 28, 36, 38
SECBIT_NO_SETUID_FIXUP = 4
"""linux/prctl.h, linux/securebits.h"""

_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442  # the same on every architecture
_AT_FDCWD, _AT_EMPTY_PATH, _OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4
_RENAME_EXCHANGE = 2
_SECCOMP_MODE_FILTER = 2
_IPPROTO_IP, _IPT_SO_SET_REPLACE, _COUNTERS_AT, _COUNTER_BYTES = 0, 64, 88, 16

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces (unshare(2)).

    Args:
        flags: One or more ``CLONE_`` constants.
    """
    _check(_libc.unshare(flags), "unshare")


def setns(process: int, kind: int) -> None:
    """Move the calling thread into a namespace of another process (setns(2)).

    Args:
        process: Pidfd of the other process.
        kind: ``CLONE_NEW`` constant of the namespace.
    """
    _check(_libc.setns(process, kind), "setns")


def prctl(option: int, *arguments: int | bytes) -> None:
    """Change an attribute of the calling process or thread (prctl(2)).

    Args:
        option: A ``PR_SET`` constant.
        arguments: At most four further arguments; missing arguments are 0.
    """
    padded = (*arguments, 0, 0, 0, 0)[:4]
    _check(_libc.prctl(option, *(each if isinstance(each, bytes) else ctypes.c_ulong(each) for each in padded)), "prctl")


def set_seccomp_filter(instructions: bytes) -> None:
    """Install a filter for all later system calls of the calling thread (seccomp(2)).

    Args:
        instructions: Program of the filter: ``struct sock_filter`` entries of 8 bytes each (linux/filter.h).
    """
    program = ctypes.create_string_buffer(instructions)
    count = len(instructions) // 8
    # A struct sock_fprog has a 2-byte count, 6 bytes of padding and a pointer. The count is written as 8 little-endian bytes, which sets the padding
    # to zero.
    head = ctypes.create_string_buffer(count.to_bytes(8, "little") + ctypes.addressof(program).to_bytes(8, "little"))
    prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(head))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system of type ``kind``, or change a mount (mount(2)).

    Args:
        source: Device, folder or name of the file system.
        target: Path of the mount point.
        kind: Type of the file system, for example ``ext4``. Ignored for bind mounts and changes.
        flags: ``MS_`` constants.
        options: Options of the file system, separated by commas.
    """
    texts = [os.fsencode(text) for text in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {target}")


def unmount(target: str, flags: int = UMOUNT_NOFOLLOW) -> None:
    """Unmount the file system at the path ``target`` (umount2(2)). ``flags`` are ``MNT_`` and ``UMOUNT_`` constants."""
    _check(_libc.umount2(os.fsencode(target), flags), target)


def clone_mount(path: str) -> int:
    """Copy the mount at a path and return a descriptor of the copy, which is not attached to any path yet (open_tree(2))."""
    return _check(_libc.syscall(_SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC), "open_tree")


def set_mount_attributes(tree: int, source: str, enable: int, disable: int = 0, namespace: int = 0) -> None:
    """Change the attributes of a mount that :func:`clone_mount` returned (mount_setattr(2)).

    Args:
        tree: Descriptor of the cloned mount.
        source: Path from which the mount was cloned; named in errors.
        enable: ``MOUNT_ATTR`` constants to set.
        disable: ``MOUNT_ATTR`` constants to clear.
        namespace: Descriptor of the user namespace whose mapping is used. Only needed if ``enable`` contains MOUNT_ATTR_IDMAP.
    """
    attributes = b"".join(number.to_bytes(8, sys.byteorder) for number in (enable, disable, 0, namespace))  # struct mount_attr
    _check(_libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, len(attributes)), f"mount_setattr of {source}")


def move_mount(tree: int, target: str) -> None:
    """Attach a mount that :func:`clone_mount` returned to the path ``target`` (move_mount(2)). ``tree`` is the descriptor of the mount."""
    _check(_libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH), f"move_mount {target}")


def exchange(one: str, other: str) -> None:
    """Exchange two files or folders in one step: each gets the name of the other (renameat2(2)). Both must exist, on one file system."""
    names = os.fsencode(one), os.fsencode(other)
    _check(_libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE), f"exchange {one} and {other}")


def sync_file_system(descriptor: int) -> None:
    """Write all changes of a file system to the disk (syncfs(2)).

    Args:
        descriptor: Descriptor of any file or folder of the file system.
    """
    _check(_libc.syncfs(descriptor), "syncfs")


def fallocate(descriptor: int, size_bytes: int) -> None:
    """Allocate disk space for the first ``size_bytes`` of a file, without a change of its content (fallocate(2)).

    ``os.posix_fallocate`` is not used: if the file system cannot allocate space, glibc writes to every block of the file instead.
    """
    _check(_libc.fallocate(descriptor, 0, ctypes.c_long(0), ctypes.c_long(size_bytes)), "fallocate")


def replace_ip_table(raw_socket: int, table: bytes) -> None:
    """Replace a table of iptables in the network namespace of a socket (IPT_SO_SET_REPLACE of linux/netfilter_ipv4/ip_tables.h).

    Args:
        raw_socket: Descriptor of a raw IPv4 socket.
        table: ``struct ipt_replace`` without the address of the memory to which the kernel writes the counters of the former table.
    """
    count = int.from_bytes(table[_COUNTERS_AT - 4 : _COUNTERS_AT], sys.byteorder)
    counters = ctypes.create_string_buffer(count * _COUNTER_BYTES)
    whole = table[:_COUNTERS_AT] + ctypes.addressof(counters).to_bytes(8, sys.byteorder) + table[_COUNTERS_AT + 8 :]
    _check(_libc.setsockopt(raw_socket, _IPPROTO_IP, _IPT_SO_SET_REPLACE, whole, len(whole)), "IPT_SO_SET_REPLACE")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return int(result)
