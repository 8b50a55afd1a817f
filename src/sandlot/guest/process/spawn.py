"""Starting programs. This is the only place in the guest that calls fork and exec.

The guest calls ``_posixsubprocess.fork_exec``, the C function on which the module ``subprocess`` is built. Importing ``subprocess``
takes longer than importing the rest of the guest. The arguments are those of Python 3.11 (Modules/_posixsubprocess.c), the
interpreter that ships with the guest; a test checks the function's signature.
"""

from __future__ import annotations

import _posixsubprocess
import errno
import fcntl
import os
import select
import signal

from sandlot.guest.errors import RpcError
from sandlot.guest.process import plain_commands
from sandlot.guest.process.accounts import BASH, DEFAULT_PATH, SH, as_process_user, build_environment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.process.accounts import Account
    from sandlot.guest.process.children import Child, ChildTable
    from sandlot.guest.process.pid_limit import PidLimit

_DIRECTORY_CODES = {
    errno.ENOENT: "working_directory_not_found",
    errno.ENOTDIR: "path_not_directory",
    errno.EACCES: "permission_denied",
    errno.EPERM: "permission_denied",
    errno.ELOOP: "path_link_loop",
    errno.ENAMETOOLONG: "path_invalid",
}
"""Error of chdir(2) -> code of the error for a working directory."""

TERM = "xterm-256color"
"""Default value of the variable ``TERM`` for a process on a terminal."""

MEASURING_LAUNCHER = "/.sandlot/bin/measured"
"""Launcher of programs whose memory is measured (``link/measuring_launcher.py``)."""
_MAX_BYTE, _PID_BYTES, _ERROR_BYTES = 255, 4, 4
_STOPPED_MS = 10_000
"""Milliseconds without a message after which the launcher of a measured program is taken as stopped by another process. exec(2) takes less."""
_MAX_STANDARD_FD = 2
_SHELL_WORDS = 3
"""Number of arguments of ``bash -c COMMAND``."""
_OOM_SCORE_MAX = b"1000"
_TIOCSCTTY = 0x540E


class Spawner:
    """Starts programs with the environment of the sandbox, and registers their owners.

    Args:
        identity: Source of the sandbox's variables and of its workspace.
        children: Table in which the owners of started programs are registered.
        pid_limit: Process limit of the sandbox. Processes are counted regularly after a program was started (``PidLimit.watch``).
        dev_null: Descriptor of /dev/null, opened for reading and writing.

    Attributes:
        dev_null: Descriptor of /dev/null, for callers that need no input or output of a program.
    """

    __slots__ = ("_children", "_identity", "_pid_limit", "dev_null")

    def __init__(self, identity: SandboxIdentity, children: ChildTable, pid_limit: PidLimit, dev_null: int) -> None:
        self._identity = identity
        self._children = children
        self._pid_limit = pid_limit
        self.dev_null = dev_null

    def spawn(
        self,
        argv: Sequence[str],
        account: Account,
        fds: tuple[int, int, int],
        child: Child | None,
        *,
        env: dict[str, str] | None = None,
        cwd: str | None = None,
        keep: Sequence[int] = (),
        terminal: bool = False,
        measured: bool = False,
    ) -> int:
        """Start a program and return its pid once exec(2) has succeeded.

        Args:
            argv: Program and arguments, as for :func:`spawn`.
            account: Account to run as.
            fds: Descriptors that become standard input, standard output and standard error of the program.
            child: Owner of the process. If None, the caller must register the owner before it returns to the loop.
            env: Variables in addition to those of the account and the sandbox.
            cwd: Working directory. None uses the workspace of the sandbox.
            keep: Further descriptors that the program inherits under the same numbers.
            terminal: True to make the first of ``fds`` the controlling terminal of the program's session.
            measured: True to start the program from a small process, as for :func:`spawn`.

        Raises:
            RpcError: The working directory or the program does not exist or cannot be used, or no further process can be started.
        """
        defaults = {"TERM": TERM} if terminal else {}
        variables = build_environment(account, defaults, self._identity.env, env or {})
        pid = spawn(argv, variables, cwd or self._identity.workspace, account, fds, keep, terminal=terminal, measured=measured)
        if child is not None:
            self._children.add(pid, child)
        self._pid_limit.watch()
        return pid


def spawn(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str,
    account: Account,
    fds: tuple[int, int, int],
    keep: Sequence[int] = (),
    *,
    terminal: bool = False,
    measured: bool = False,
) -> int:
    """Start a program and return its pid once exec(2) has succeeded.

    The program leads a new session and process group. All signals have their default action, and the program inherits no
    descriptors except ``fds`` and ``keep``. If ``argv[0]`` is /bin/bash and the image has no bash, /bin/sh is started instead. A command line for
    bash that needs no shell is run without bash.

    Args:
        argv: Program and arguments. A program without a slash is searched for in the ``PATH`` of ``env``.
        env: Complete environment.
        cwd: Absolute path of the working directory.
        account: Account to run as.
        fds: Descriptors that become standard input, standard output and standard error of the program.
        keep: Further descriptors that the program inherits under the same numbers.
        terminal: True to make the first of ``fds`` the controlling terminal of the program's session.
        measured: True to start the program with a small launcher, so that its peak memory is its own (``link/measuring_launcher.py``).

    Raises:
        RpcError: The working directory or the program does not exist or cannot be used, or no further process can be started.
    """
    if measured and (pid := _start_measured(argv, env, cwd, account, fds)):
        return pid
    if len(argv) == _SHELL_WORDS and argv[0] == BASH and argv[1] == "-c" and (plain := plain_commands.parse(argv[2], env, cwd)) is not None:
        pid, failure = _start(plain.argv, plain.env, cwd, account, fds, keep, terminal=terminal, path=plain.path)
        if not failure:
            return pid
    pid, failure = _start(argv, env, cwd, account, fds, keep, terminal=terminal)
    if not failure:
        return pid
    if argv[0] == BASH and not os.path.exists(BASH):
        # Pass /bin/sh as argv[0] too: the image's sh may be busybox, which chooses what to run by argv[0].
        return spawn((SH, *argv[1:]), env, cwd, account, fds, keep, terminal=terminal)
    raise _exec_error(failure, argv, cwd)


def search_path(program: str, env: dict[str, str]) -> list[bytes]:
    """Return the paths to try for a program, in the order of execvp(3).

    If ``program`` contains a slash, ``program`` itself is the only path. Otherwise there is one path for each folder of ``PATH``.
    """
    if "/" in program:
        return [os.fsencode(program)]
    directories = env.get("PATH", DEFAULT_PATH).split(":")
    return [os.fsencode(os.path.join(directory or ".", program)) for directory in directories]


def _start(
    argv: Sequence[str],
    env: dict[str, str],
    cwd: str,
    account: Account,
    fds: tuple[int, int, int],
    keep: Sequence[int],
    *,
    terminal: bool,
    path: str | None = None,
) -> tuple[int, bytes]:
    """Start a program, and wait until its exec(2) has succeeded or failed. After a failure, the child is reaped.

    Returns:
        Pid of the child, and the failure report that ``fork_exec`` has written. The report is empty if exec(2) has succeeded.

    Raises:
        RpcError: ``limit_exceeded``: the fork has failed.
    """
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    try:
        low_fds: list[int] = []
        try:
            # In the child, fork_exec overwrites descriptors 0 to 2. So the write end of the status pipe needs a higher number.
            while status_write <= _MAX_STANDARD_FD:
                low_fds.append(status_write)
                status_write = os.dup(status_write)
                os.set_inheritable(status_write, False)
            for fd in keep:
                os.set_inheritable(fd, True)
            try:
                executables = search_path(argv[0], env) if path is None else [os.fsencode(path)]
                pid = _fork_exec(argv, executables, env, cwd, account, fds, (status_read, status_write), _take_terminal if terminal else None)
            finally:
                for fd in keep:
                    os.set_inheritable(fd, False)
        except BlockingIOError:
            raise RpcError("limit_exceeded", "The sandbox has reached its limit of processes.", "End a process, or raise the pids limit.") from None
        except OSError as error:
            raise RpcError("limit_exceeded", f"The process could not be started: {error.strerror}.") from None
        finally:
            os.close(status_write)
            for fd in low_fds:
                os.close(fd)
        # A successful exec closes the status pipe. A failed exec writes "OSError:<errno in hex>:<step>" to it, in several pieces.
        report = _read_to_end(status_read)
    finally:
        os.close(status_read)
    if report:
        os.waitpid(pid, 0)
    else:
        _prefer_for_oom_kill(pid)
    return pid, report


def _start_measured(argv: Sequence[str], env: dict[str, str], cwd: str, account: Account, fds: tuple[int, int, int]) -> int:
    """Start a program with a small launcher, and wait until its exec(2) has succeeded. Return its pid, or 0 if it could not be started.

    Other processes of the account can write to the pipe as well. So the pid must be that of a child, and nothing is waited for that may never end.
    """
    path = next((path for path in search_path(argv[0], env) if os.path.exists(path)), None)
    if path is None:
        return 0
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            if write > _MAX_BYTE:
                return 0
            launcher_argv = ("measured", os.fsdecode(bytes((write,))), os.fsdecode(path), *argv)
            launcher, failure = _start(launcher_argv, env, cwd, account, fds, (write,), terminal=False, path=MEASURING_LAUNCHER)
        finally:
            os.close(write)
        if failure:
            return 0
        report = _read_report(read, _PID_BYTES)
        _end(launcher)  # its work is done, and the program could stop it: the pipe would then stay open
        report += _read_report(read, _ERROR_BYTES)
    finally:
        os.close(read)
    pid = int.from_bytes(report[:_PID_BYTES], "little", signed=True)
    if not _is_child(pid):
        return 0
    if len(report) == _PID_BYTES:
        _prefer_for_oom_kill(pid)
        return pid
    _end(pid)  # the error of exec(2) followed
    return 0


def _read_report(fd: int, size: int) -> bytes:
    """Read ``size`` bytes of what the launcher of a measured program writes; fewer if the pipe is closed or ``_STOPPED_MS`` have passed."""
    content, poller = b"", select.poll()
    poller.register(fd, select.POLLIN)
    while len(content) < size and poller.poll(_STOPPED_MS) and (piece := os.read(fd, size - len(content))):
        content += piece
    return content


def _is_child(pid: int) -> bool:
    """Return True if a process is a child of the guest that was not reaped yet."""
    if pid <= 0:
        return False
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return False
    return True


def _end(pid: int) -> None:
    """Kill and reap a child."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _read_to_end(fd: int) -> bytes:
    content = b""
    while piece := os.read(fd, 4096):
        content += piece
    return content


def _fork_exec(
    argv: Sequence[str],
    executables: list[bytes],
    env: dict[str, str],
    cwd: str,
    account: Account,
    fds: tuple[int, int, int],
    status_pipe: tuple[int, int],
    before_exec: Callable[[], None] | None,
) -> int:
    """Fork and exec under an account, and return the child's pid.

    The guest changes its own ids before the vfork and restores them afterwards, and the child inherits the changed ids.
    ``fork_exec`` could change the ids in the child instead, but would then use fork instead of vfork. In gVisor, a fork of the guest
    takes 10 to 18 ms, and a vfork 1 ms (measured). exec(2) drops the saved ids and the capabilities of the child.
    """
    stdin, stdout, stderr = fds
    arguments = [os.fsencode(argument) for argument in argv]
    variables = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    with as_process_user(account):
        return _posixsubprocess.fork_exec(
            arguments,
            executables,
            False,  # close_fds: every descriptor of the guest is close-on-exec, and listing /proc/self/fd takes time
            (),  # pass_fds
            cwd,
            variables,
            stdin,  # p2cread
            -1,  # p2cwrite
            -1,  # c2pread
            stdout,  # c2pwrite
            -1,  # errread
            stderr,  # errwrite
            *status_pipe,  # errpipe_read, errpipe_write
            True,  # restore_signals
            True,  # call_setsid
            -1,  # pgid_to_set: setsid(2) creates the process group
            None,  # gid
            None,  # extra_groups
            None,  # uid
            0o022,  # umask
            before_exec,  # type: ignore[arg-type]  # preexec_fn; typeshed does not allow None
            True,  # allow_vfork: has no effect if preexec_fn is set
        )


def _take_terminal() -> None:
    """Make standard input the controlling terminal of the session (TIOCSCTTY(2const)). Runs in the child, as its preexec_fn.

    The controlling terminal must be set between setsid(2) and exec(2), so a preexec_fn is needed. This is the only preexec_fn in Sandlot.
    Running Python code between fork and exec is safe, because the guest has one thread. If a preexec_fn is passed, ``fork_exec`` uses
    fork instead of vfork. In gVisor, a fork takes 10 to 18 ms, and a vfork 1 ms.
    """
    fcntl.ioctl(0, _TIOCSCTTY, 0)


def _prefer_for_oom_kill(pid: int) -> None:
    """Make the kernel kill a process and its children before PID 1 when the sandbox runs out of memory.

    The kernel kills the process with the highest sum of memory use and oom_score_adj (proc(5)). If all other processes are small, this
    could be PID 1. The setting has no effect in gVisor, where the host's kernel kills the whole sandbox.
    """
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # the process has ended
        return
    try:
        os.write(fd, _OOM_SCORE_MAX)
    except OSError:
        return
    finally:
        os.close(fd)


def _exec_error(report: bytes, argv: Sequence[str], cwd: str) -> RpcError:
    """Return the error for a program that could not be started.

    Args:
        report: Failure report of ``fork_exec``.
        argv: Program and arguments.
        cwd: Working directory.
    """
    _, _, rest = report.partition(b":")
    number, _, step = rest.partition(b":")
    code = int(number or b"0", 16)
    if not code:  # the preexec_fn has failed, and the report of this failure has no errno
        return RpcError("unsupported", "The process could not get a controlling terminal.", "Start the process without a terminal.")
    reason = os.strerror(code)
    if step == b"noexec" or not os.path.isdir(cwd):
        return RpcError(
            _DIRECTORY_CODES.get(code, "invalid_request"),
            f"The working directory {cwd!r} cannot be entered: {reason}.",
            "Create the directory, or omit `cwd`.",
        )
    program = argv[0][:200]
    if code == errno.ENOENT:
        hint = "The image has no shell: pass the program and its arguments as a list." if argv[0] == SH else "Check the name, or install the program."
        return RpcError("program_not_found", f"The sandbox has no program {program!r}.", hint)
    if code == errno.E2BIG:
        return RpcError(
            "invalid_request",
            "The command and its environment are too large for the sandbox's kernel.",
            "Pass the data in a file or on standard input.",
        )
    return RpcError(
        "permission_denied" if code == errno.EACCES else "invalid_request",
        f"{program!r} cannot be run: {reason}.",
        "Use an executable file for this machine's architecture, or a script that begins with #! and its interpreter.",
    )
