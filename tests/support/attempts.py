"""Many attempts at one promise, each in a process of its own inside of a sandbox, told apart by their outcome.

An outcome is ``ok``, the name of an error (``EPERM``), the name of a signal that ended the attempt (``SIGSYS``), or ``broken``
with what is wrong with the attempt itself. An attempt is a few statements of Python that find the names of
:data:`tests.support.inside.PREAMBLE` and of :data:`PREAMBLE`; it ends with an error where it was refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping

from sandlot import Sandbox
from tests.support.inside import arguments, run_inside

REFUSALS = frozenset(
    {
        *("EPERM", "EACCES", "EROFS", "SIGSYS", "ENOSYS", "EOPNOTSUPP", "ENOTSUP"),
        *("ENODEV", "ENXIO", "ENOENT", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT"),
    }
)
"""What says "you may not" or "there is no such thing". Anything else, as EINVAL, may mean that nothing was really tried."""

# System calls by number on x86-64 and on arm64 (asm/unistd.h); from 424 on they are the same.
PREAMBLE = """
import fcntl, mmap, resource, select, signal, threading, time
NUMBERS = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "clock_settime": (227, 112), "clone": (56, 220),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273), "init_module": (175, 105), "ioperm": (173, None),
    "iopl": (172, None), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219),
    "lookup_dcookie": (212, 18), "mbind": (237, 235), "memfd_create": (319, 279), "migrate_pages": (256, 238), "modify_ldt": (154, None),
    "mount": (165, 40), "move_pages": (279, 239), "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241), "personality": (135, 92), "pivot_root": (155, 41), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "reboot": (169, 142), "request_key": (249, 218),
    "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268), "settimeofday": (164, 170), "splice": (275, 76),
    "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97),
    "userfaultfd": (323, 282), "uselib": (134, None), "ustat": (136, None), "vhangup": (153, 58),
    "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "mount_setattr": 442, "quotactl_fd": 443,
    "landlock_create_ruleset": 444, "memfd_secret": 447, "listmount": 458, "open_tree_attr": 467,
}
libc.syscall.restype = ctypes.c_long
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
def call(name, *args):
    number = NUMBERS[name]
    if isinstance(number, tuple):
        number = number[platform.machine() != "x86_64"]
    if number is None:
        raise OSError(errno.ENOSYS, "not on this architecture")
    return check(libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args)))
def outcomes_of(attempts, apart=False):
    # In a process of its own, so that an attempt may die, hang or change what is its process's. One that was refused has changed
    # nothing, and the next may be made from the same process, unless all are to begin afresh.
    rest, found = list(attempts.items()), {}
    while rest:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            os.close(reading)
            for _, code in rest:
                signal.alarm(15)
                said = "ok"
                try:
                    exec(code, globals())
                except OSError as error:
                    said = errno.errorcode.get(error.errno, "broken: " + repr(error))
                except BaseException as error:
                    said = "broken: " + repr(error)
                os.write(writing, said.encode()[:400].replace(b"\\n", b" ") + b"\\n")
                if apart or said == "ok":
                    break
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        attempt(os.killpg, child, signal.SIGKILL)
        os.set_blocking(reading, False)
        said = attempt(os.read, reading, 65536).get("got", b"").decode().splitlines()
        os.close(reading)
        if os.WIFSIGNALED(status) or not said:
            said.append(signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "broken: said nothing")
        found.update(zip([name for name, _ in rest], said))
        rest = rest[len(said):]
    return found
def outcome(code):
    return outcomes_of({"it": code})["it"]
"""


def outcomes(
    sandbox: Sandbox, attempts: Mapping[str, str], *, user: str, setup: str = "", apart: bool = False, timeout: float = 240
) -> dict[str, str]:
    """Try all of them, one after the other; the outcome of each.

    Args:
        sandbox: Where.
        attempts: Statements by a name for each attempt.
        user: As whom.
        setup: Statements that run first and whose names the attempts find.
        apart: Whether each begins in a new process; otherwise only one that follows a success does.
        timeout: Seconds, for all of them.
    """
    return run_inside(sandbox, _program(setup, apart=apart), user=user, given={"attempts": dict(attempts)}, timeout=timeout)


def outcomes_outside(attempts: Mapping[str, str], *, setup: str = "") -> dict[str, str]:
    """The same on the host, as root, in a mount namespace of its own: that the attempts are real where no boundary is.

    Args:
        attempts: Only such that change nothing but their process and its mount namespace.
        setup: Statements that run first.
    """
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        sys.executable,
        *arguments(_program(setup, apart=True), {"attempts": dict(attempts)}),
    ]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)
    told: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return told


def not_refused(found: Mapping[str, str], *, allowed: Iterable[str] = (), also: Mapping[str, Iterable[str]] | None = None) -> dict[str, str]:
    """What was neither refused nor is known to do no harm: nothing, if a promise holds.

    Args:
        found: Outcomes by attempt.
        allowed: Attempts that may succeed, because what they do stays inside.
        also: Errors that are a refusal of one attempt, besides :data:`REFUSALS`.
    """
    extra = also or {}
    passed = frozenset(allowed)
    return {
        name: result
        for name, result in found.items()
        if result not in REFUSALS and result not in extra.get(name, ()) and not (name in passed and not result.startswith("broken"))
    }


def _program(setup: str, *, apart: bool) -> str:
    return f"{PREAMBLE}\n{setup}\ntold.update(outcomes_of(given['attempts'], {apart}))\n"
