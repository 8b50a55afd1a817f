"""Starting programs: users, environment, the one fork+exec of the guest.

``_posixsubprocess.fork_exec`` is what the standard library's subprocess is built on. It is called directly, because
importing subprocess costs more than the whole rest of the guest's start, and because the interpreter is our own: the
signature is that of python 3.11 (Modules/_posixsubprocess.c), which the guest layer ships, and is checked by a test.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import fcntl
import os

from sandlot.guest.calls import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UID = 1000
GID = 1000
SHELL = "/bin/bash"
PLAIN_SHELL = "/bin/sh"
PASSWD_FIELDS = 7
GROUP_FIELDS = 4
LAST_STANDARD_FD = 2
TIOCSCTTY = 0x540E


class Account:
    """Who a process runs as."""

    __slots__ = ("gid", "groups", "home", "name", "uid")

    def __init__(self, name: str, uid: int, gid: int, home: str, groups: list[int]) -> None:
        self.name = name
        self.uid = uid
        self.gid = gid
        self.home = home
        self.groups = groups


def account(name: str) -> Account:
    """The account ``user`` or ``root``; ``user`` is uid 1000 even where the image knows nobody of that id.

    Raises:
        Refusal: Another name.
    """
    if name == "root":
        return Account("root", 0, 0, "/root", [0])
    if name != "user":
        raise Refusal("invalid_request", f"There is no user {name[:50]!r}.", "Use 'user' or 'root'.")
    seen = _seen("/etc/passwd"), _seen("/etc/group")
    if seen not in _KNOWN:
        _KNOWN.clear()
        _KNOWN[seen] = _user()
    login, gid, home, groups = _KNOWN[seen]
    return Account(login, UID, gid, home if os.path.isdir(home) else "/", groups)


_KNOWN: dict[tuple[object, object], tuple[str, int, str, list[int]]] = {}
"""What was found in the two files when they were last read: to open one takes longer in gVisor than to see that it is the same."""


def _seen(path: str) -> tuple[int, ...] | None:
    """What is another where a file is another, or has been written."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _user() -> tuple[str, int, str, list[int]]:
    login, gid, home = "user", GID, "/home/user"
    for fields in _table("/etc/passwd"):
        if len(fields) >= PASSWD_FIELDS and fields[2] == str(UID):
            login, home = fields[0], fields[5] or "/"
            if fields[3].isdigit():
                gid = int(fields[3])
            break
    groups = {gid}
    for fields in _table("/etc/group"):
        if len(fields) >= GROUP_FIELDS and fields[2].isdigit() and login in fields[3].split(","):
            groups.add(int(fields[2]))
    return login, gid, home, sorted(groups)


def _table(path: str) -> list[list[str]]:
    """An account file's rows; nothing where an image, or its root user, left something unreadable."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        text = os.read(fd, 1 << 20)
    except OSError:
        return []
    finally:
        os.close(fd)
    return [line.split(":") for line in text.decode("utf-8", "replace").splitlines()]


def environment(who: Account, *layers: dict[str, str]) -> dict[str, str]:
    """The environment of a process: the account's own, then each layer over it."""
    env = {
        "PATH": (f"{who.home.rstrip('/')}/.local/bin:" if who.uid else "") + DEFAULT_PATH,
        "HOME": who.home,
        "USER": who.name,
        "LOGNAME": who.name,
        "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        "LANG": "C.UTF-8",
    }
    for layer in layers:
        env.update(layer)
    return env


def candidates(program: str, env: dict[str, str]) -> list[bytes]:
    """Where a program may be, in the order of PATH, as execvp(3) looks."""
    if "/" in program:
        return [os.fsencode(program)]
    folders = env.get("PATH", DEFAULT_PATH).split(":")
    return [os.fsencode(os.path.join(folder or ".", program)) for folder in folders]


def start(
    argv: Sequence[str], env: dict[str, str], cwd: str, who: Account, fds: tuple[int, int, int], keep: Sequence[int] = (), *, terminal: bool = False
) -> int:
    """Fork and exec; the child's pid. Its own session and process group, signals restored, nothing inherited but ``fds``.

    Args:
        argv: Program and arguments; where the image has no bash, sh is taken for it, under its own name.
        env: The whole environment.
        cwd: Absolute folder.
        who: The account.
        fds: What becomes 0, 1 and 2.
        keep: More descriptors that the child inherits, under their own numbers.
        terminal: Whether the first of ``fds`` becomes the terminal that controls its session.

    Raises:
        Refusal: There is no such folder or program, or it cannot be run.
    """
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    lowest = []
    try:
        # fork_exec wants the status pipe above the standard descriptors.
        while status_write <= LAST_STANDARD_FD:
            lowest.append(status_write)
            status_write = os.dup(status_write)
            os.set_inheritable(status_write, False)
        for fd in keep:
            os.set_inheritable(fd, True)
        try:
            pid = _fork_exec(argv, env, cwd, who, fds, (status_read, status_write), take_terminal if terminal else None)
        finally:
            for fd in keep:
                os.set_inheritable(fd, False)
    except BlockingIOError:
        raise Refusal("limit_exceeded", "The sandbox has no room for another process.", "End some, or ask for more pids.") from None
    except OSError as error:
        raise Refusal("limit_exceeded", f"The process could not be started: {error.strerror}.") from None
    finally:
        os.close(status_write)
        for fd in lowest:
            os.close(fd)
    try:
        # Closed by a successful exec; a failed one tells its errno: "OSError:<hex errno>:<where>", in several writes.
        report = b""
        while piece := os.read(status_read, 4096):
            report += piece
    finally:
        os.close(status_read)
    if report:
        os.waitpid(pid, 0)
        if argv[0] == SHELL and not os.path.exists(SHELL):
            # Not as another file for the same arguments: what is both, busybox for one, goes by the name it is called.
            return start((PLAIN_SHELL, *argv[1:]), env, cwd, who, fds, keep, terminal=terminal)
        raise _exec_failure(report, argv, cwd)
    _offer(pid)
    return pid


def _offer(pid: int) -> None:
    """Let the kernel kill a process, and all that it starts, before it kills PID 1, where the sandbox is short of memory.

    Without it the kernel takes the largest (oom_score_adj, proc(5)), and of many small ones that is PID 1. In gVisor it means
    nothing: the host's kernel ends the sandbox as a whole.
    """
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # it has ended
        return
    try:
        os.write(fd, b"1000")
    except OSError:
        return
    finally:
        os.close(fd)


class Taking:
    """Another identity, taken by the guest itself for a moment: the one that a child is to be born with, for the length of one vfork.

    ``fork_exec`` can change ids in the child, but then it must not vfork, and a fork of the guest costs 10 to 18 ms in
    gVisor where a vfork costs 1 (measured). The saved ids stay 0 meanwhile, which is the way back; exec(2) forgets them in
    the child, and takes its capabilities. For that millisecond a process of the same uid may signal the guest, which heeds
    nothing that only asks (main.py); with SIGKILL or a fault it ends its own sandbox, as ``sudo`` lets it at any time, where gVisor does.
    """

    __slots__ = ("_who",)

    def __init__(self, who: Account) -> None:
        self._who = who

    def __enter__(self) -> None:
        if self._who.uid:
            os.setgroups(self._who.groups)
            os.setresgid(self._who.gid, self._who.gid, 0)
            os.setresuid(self._who.uid, self._who.uid, 0)

    def __exit__(self, *_: object) -> None:
        if self._who.uid:
            os.setresuid(0, 0, 0)
            os.setresgid(0, 0, 0)
            os.setgroups([0])


def _fork_exec(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str,
    who: Account,
    fds: tuple[int, int, int],
    status: tuple[int, int],
    in_child: Callable[[], None] | None,
) -> int:
    stdin, stdout, stderr = fds
    arguments = [os.fsencode(argument) for argument in argv]
    variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    programs = candidates(argv[0], env)
    with Taking(who):
        return _posixsubprocess.fork_exec(
            arguments,
            programs,
            False,  # close_fds: everything of the guest is close-on-exec, and listing /proc/self/fd costs
            (),
            cwd,
            variables,
            stdin,
            -1,
            -1,
            stdout,
            -1,
            stderr,
            *status,
            True,  # restore_signals
            True,  # call_setsid
            -1,  # pgid_to_set: setsid made the group
            None,
            None,
            None,
            0o022,
            in_child,  # type: ignore[arg-type]  # preexec_fn: for terminals only; typeshed wants one
            True,  # allow_vfork, which one of those prevents
        )


def take_terminal() -> None:
    """In a child that leads its session: make its standard input the terminal that controls it (TIOCSCTTY(2const)).

    It runs between fork and exec, where vfork cannot be had: ten milliseconds more in gVisor. The guest has one thread, so the fork is safe.
    """
    fcntl.ioctl(0, TIOCSCTTY, 0)


def _exec_failure(report: bytes, argv: Sequence[str], cwd: str) -> Refusal:
    _, _, rest = report.partition(b":")
    number, _, where = rest.partition(b":")
    code = int(number or b"0", 16)
    if not code:  # in_child failed: its error has no number
        return Refusal("unsupported", "The process could not get its terminal.", "Run it without one.")
    reason = os.strerror(code)
    if where == b"noexec" or not os.path.isdir(cwd):
        hint = "Make the folder first, or leave the working folder out."
        return Refusal("path_not_found" if code == errno.ENOENT else "path_invalid", f"The working folder {cwd!r} cannot be entered: {reason}.", hint)
    if code == errno.ENOENT:
        hint = "Check its name, or install it."
        if argv[0] == PLAIN_SHELL:
            hint = "The image has no shell: give a program and its arguments as a list."
        return Refusal("path_not_found", f"There is no program {argv[0][:200]!r} in the sandbox.", hint)
    hint = "It must be a file that its user may execute, of this machine's architecture; a script begins with #! and its interpreter."
    return Refusal("permission_denied" if code == errno.EACCES else "invalid_request", f"{argv[0][:200]!r} cannot be run: {reason}.", hint)
