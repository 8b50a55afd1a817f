"""Small launcher, for x86-64, of programs whose memory is measured.

The largest resident memory of a process (``ru_maxrss``, getrusage(2)) includes that of the process that forked it, from before its exec(2). A program
that the guest starts itself would have used at least the memory of the guest, 16 MiB. So the guest starts the launcher, which has two pages. The
launcher starts the measured program as a sibling of itself, a child of the guest, and ends. The guest waits for the program as for any child.

The launcher is machine code, because an interpreter is larger than most programs that are measured.
"""

from __future__ import annotations

from sandlot.link.elf import elf_file

_CODE = bytes.fromhex(
    # r12 = envp, r13 = the byte of argv[1], r14 = argv[2], r15 = argv + 3. The stack begins with argc, argv, a null pointer and envp.
    "488b1c24 4c8d64dc10 4c8b6c2410 450fb66d00 4c8b742418 4c8d7c2420"
    # Call clone(CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD, 0, 0, 0, 0), and jump to the child's part in the child.
    "b838000000 bf11c10000 31f6 31d2 4531d2 4531c0 0f05 85c0 7409"
    # Call exit_group(0).
    "b8e7000000 31ff 0f05"
    # The child calls getpid() and write(r13, address of the pid, 4).
    "b827000000 0f05 50 b801000000 4489ef 4889e6 ba04000000 0f05"
    # It calls setsid() and fcntl(r13, F_SETFD, FD_CLOEXEC).
    "b870000000 0f05 b848000000 4489ef be02000000 ba01000000 0f05"
    # It calls execve(r14, r15, r12). If this fails, it calls write(r13, address of -errno, 4), and jumps back to exit_group(0).
    "b83b000000 4c89f7 4c89fe 4c89e2 0f05 50 b801000000 4489ef 4889e6 ba04000000 0f05 eb9d"
)


def measuring_launcher() -> bytes:
    """Return the launcher, an ELF file.

    The arguments of the launcher are the number of a descriptor as one byte, the path of the program, and the arguments of the program with the 0th.
    The pid of the program is written to the descriptor, as 4 bytes, before exec(2): the program runs as the same user, and can kill or stop the
    launcher at once. If exec(2) has failed, the negative error follows.
    """
    return elf_file(_CODE)
