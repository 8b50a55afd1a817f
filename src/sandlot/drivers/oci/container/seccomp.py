"""System calls that a container may make: a list of allowed calls. All other calls fail or have no effect.

Invariants:
- A call that this file does not list fails with ENOSYS, as on a kernel without this call. Programs and libraries then use an older call. The same is
  true for calls that are newer than this file. Omitted on purpose, among others: clone3; clone with flags for namespaces; io_setup and related calls,
  which consume a limit of the whole host (fs.aio-max-nr); io_uring, a frequent source of kernel vulnerabilities.
- A call that administers the machine, opens a namespace or accesses kernel objects of another process fails with EPERM, so that programs report the
  right cause.
- Only the native architecture is allowed: a 32-bit or x32 call ends the calling thread, which is libseccomp's default for foreign architectures.

Sources: syscalls(2) and the manual page of each call. The numbers are those of x86-64.
"""

from __future__ import annotations

from typing import Any

EPERM, ENOSYS = 1, 38  # errno(3)

O_NOTIFICATION_PIPE = 0x80
"""Flag of pipe2(2) for the kernel's watch queues (linux/watch_queue.h)."""
CLONE_NAMESPACES = 0x7E020000
"""All flags of clone(2) that create a namespace: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_STREAM, SOCK_DGRAM, SOCK_TYPES = 1, 2, 0xF
"""Socket types of TCP and UDP. The mask excludes SOCK_CLOEXEC and SOCK_NONBLOCK (socket(2))."""
PROTOCOLS = {SOCK_STREAM: (0, 6), SOCK_DGRAM: (0, 17)}
"""Socket type -> allowed protocols: the default protocol, as 0 or by its number. For others (SCTP, DCCP, MPTCP), the host might load a module."""
AF_NETLINK, NETLINK_ROUTE = 16, 0
"""The only netlink family allowed; getifaddrs(3) needs it. Other families reach the crypto, audit and firewall code of the host's kernel."""
PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""Arguments of personality(2): Linux, Linux32, each with UNAME26; no address randomisation, for debuggers; the query."""

ALLOWED = (
    # Files and folders.
    *("access", "chdir", "chmod", "chown", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3", "faccessat", "faccessat2"),
    *("fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr"),
    *("flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd", "getdents", "getdents64", "getxattr"),
    *("ioctl", "lchown", "lgetxattr", "link", "linkat", "listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "mkdir"),
    *("mkdirat", "mknod", "mknodat", "newfstatat", "open", "openat", "openat2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2"),
    *("read", "readahead", "readlink", "readlinkat", "readv", "removexattr", "rename", "renameat", "renameat2", "rmdir", "sendfile", "setxattr"),
    *("splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync_file_range", "tee", "truncate", "umask", "unlink"),
    *("unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write", "writev"),
    *("inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch"),
    *("landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self"),
    # Processes, threads and signals.
    *("arch_prctl", "execve", "execveat", "exit", "exit_group", "fork", "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake"),
    *("get_robust_list", "getcpu", "getegid", "geteuid", "getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority"),
    *("getresgid", "getresuid", "getrlimit", "getrusage", "getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "kill", "membarrier"),
    *("pause", "pidfd_open", "pidfd_send_signal", "prctl", "prlimit64", "restart_syscall", "rseq", "rt_sigaction", "rt_sigpending"),
    *("rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_get_priority_max"),
    *("sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval"),
    *("sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "set_robust_list"),
    *("set_tid_address", "setfsgid", "setfsuid", "setgid", "setgroups", "setpgid", "setpriority", "setregid", "setresgid", "setresuid"),
    *("setreuid", "setrlimit", "setsid", "setuid", "sigaltstack", "signalfd", "signalfd4", "tgkill", "tkill", "vfork", "wait4", "waitid"),
    # chroot(2) inside the sandbox, and the capabilities of the calling process.
    *("capget", "capset", "chroot"),
    # Debuggers and profilers. The kernel does not allow tracing across user namespaces.
    *("kcmp", "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace"),
    # Memory.
    *("brk", "cachestat", "get_mempolicy", "madvise", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mremap"),
    *("msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "remap_file_pages", "set_mempolicy"),
    # Calls on existing sockets. `seccomp_filter` limits the kinds of sockets that can be created.
    *("accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom", "recvmmsg", "recvmsg", "sendmmsg"),
    *("sendmsg", "sendto", "setsockopt", "shutdown"),
    # Communication between processes of one sandbox, which has its own IPC namespace.
    *("mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "pipe"),
    *("semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "shmget"),
    # Waiting, and reading clocks but not setting them.
    *("alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait"),
    *("epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "getitimer", "gettimeofday", "nanosleep", "poll", "ppoll"),
    *("pselect6", "select", "setitimer", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime"),
    *("timerfd_create", "timerfd_gettime", "timerfd_settime", "times"),
    # Random numbers, and information about the machine.
    *("getrandom", "sysinfo", "uname"),
)

WITHOUT_EFFECT = ("sync", "syncfs")
"""Calls that succeed and do nothing. sync(2) would write back all unwritten data of the host and delay every process, and no sandbox's disk is read
again after a crash. fsync(2) of single files is allowed."""

REFUSED = (
    # Mounts, swap areas, quotas, and files by handle.
    *("mount", "umount2", "pivot_root", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    *("statmount", "listmount", "swapon", "swapoff", "quotactl", "quotactl_fd", "name_to_handle_at", "open_by_handle_at"),
    # Changes of namespaces.
    *("setns", "unshare"),
    # Administration of the machine: modules, kexec, clocks, host name, I/O ports, kernel log.
    *("init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms", "kexec_load", "kexec_file_load"),
    *("reboot", "acct", "iopl", "ioperm", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "syslog"),
    *("vhangup", "nfsservctl", "lookup_dcookie", "fanotify_init", "fanotify_mark"),
    # Kernel keyrings, because keys belong to users of the host, not to namespaces.
    *("add_key", "keyctl", "request_key"),
    # BPF programs and probes in the kernel; pages and file descriptors of other processes; segment descriptors.
    *("bpf", "perf_event_open", "userfaultfd", "pidfd_getfd", "move_pages", "migrate_pages", "mbind", "modify_ldt"),
)


def seccomp_filter() -> dict[str, Any]:
    """Return the section ``linux.seccomp`` of an OCI configuration (config-linux.md)."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [
            {"names": list(ALLOWED), "action": "SCMP_ACT_ALLOW"},
            {"names": list(REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
            {"names": list(WITHOUT_EFFECT), "action": "SCMP_ACT_ERRNO", "errnoRet": 0},
            # clone3 is not on the list, because a filter cannot see its flags behind a pointer. C libraries fall back to clone.
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [_argument(0, CLONE_NAMESPACES, "SCMP_CMP_MASKED_EQ", 0)]},
            {"names": ["pipe2"], "action": "SCMP_ACT_ALLOW", "args": [_argument(1, O_NOTIFICATION_PIPE, "SCMP_CMP_MASKED_EQ", 0)]},
            {"names": ["socket", "socketpair"], "action": "SCMP_ACT_ALLOW", "args": [_argument(0, AF_UNIX)]},
            *(
                {
                    "names": ["socket"],
                    "action": "SCMP_ACT_ALLOW",
                    "args": [_argument(0, family), _argument(1, SOCK_TYPES, "SCMP_CMP_MASKED_EQ", kind), _argument(2, protocol)],
                }
                for family in (AF_INET, AF_INET6)
                for kind, protocols in PROTOCOLS.items()
                for protocol in protocols
            ),
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [_argument(0, AF_NETLINK), _argument(2, NETLINK_ROUTE)]},
            *({"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [_argument(0, kind)]} for kind in PERSONALITIES),
        ],
    }


def _argument(index: int, value: int, comparison: str = "SCMP_CMP_EQ", second: int = 0) -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": second, "op": comparison}
