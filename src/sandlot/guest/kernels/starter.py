"""The ways to start a kernel, in the order in which a context tries them.

If a kernel ends before its first message, the context tries the next way. For all languages but bash, the last way omits
optional parts that may have prevented the start: IPython and other packages of the image, options of node, or the user's profile of R.
"""

from __future__ import annotations

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import languages
from sandlot.guest.kernels.kernel import KernelPipes, KernelProcess
from sandlot.guest.process.accounts import lookup_account

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.kernels.prefork import Prefork
    from sandlot.guest.kernels.process_group import ProcessGroups
    from sandlot.guest.loop import Loop
    from sandlot.guest.process.children import ChildTable
    from sandlot.guest.process.spawn import Spawner

SPARE, FULL, PLAIN = "spare", "full", "plain"
START_ORDER = {"python": (SPARE, FULL, PLAIN), "bash": (FULL,), "javascript": (FULL, PLAIN), "typescript": (FULL, PLAIN), "r": (FULL, PLAIN)}
"""Language -> ways to start its kernel, in the order in which a context tries them.

``spare`` uses a kernel that is forked from the fork server, ``full`` starts the program, and ``plain`` starts the program without its optional parts.
"""
MAX_START_S, MIN_START_S = 30.0, 10.0
"""Longest and shortest time in seconds that a kernel may take until its first message. See :func:`start_timeout_s`."""


def start_timeout_s(cell_timeout_s: float | None) -> float:
    """Return the time in seconds after which a kernel that has sent no message is killed.

    The time is the timeout of the waiting cell, but at least ``MIN_START_S`` and at most ``MAX_START_S``.

    Args:
        cell_timeout_s: Timeout in seconds of the cell that waits for the kernel. None if this cell has no timeout or no cell waits; the
            result is then ``MAX_START_S``.
    """
    return max(MIN_START_S, min(MAX_START_S, cell_timeout_s or MAX_START_S))


class KernelStarter:
    """Starts kernels for contexts.

    Args:
        loop: The guest's loop.
        spawner: Starts the programs of kernels.
        children: Table of child processes, to which each new kernel is added.
        identity: The sandbox's identity, which includes its environment variables.
        prefork: Source of forked Python kernels.
        groups: Creates the process group of each new kernel.
    """

    __slots__ = ("_children", "_groups", "_identity", "_loop", "_prefork", "_spawner")

    def __init__(
        self, loop: Loop, spawner: Spawner, children: ChildTable, identity: SandboxIdentity, prefork: Prefork, groups: ProcessGroups
    ) -> None:
        self._loop = loop
        self._spawner = spawner
        self._children = children
        self._identity = identity
        self._prefork = prefork
        self._groups = groups

    def start(
        self,
        language: str,
        env: dict[str, str],
        cwd: str,
        attempt: int,
        on_created: Callable[[KernelProcess, int], object],
        on_refused: Callable[[RpcError], object],
    ) -> None:
        """Start a kernel. Try the ways in ``START_ORDER[language]`` in their order, beginning at index ``attempt``.

        Args:
            language: Language of the context.
            env: Environment variables of the sandbox and the context.
            cwd: Absolute path of the working directory in which the kernel is started.
            attempt: Index in ``START_ORDER[language]`` of the first way to try.
            on_created: Called before or after this method returns, with the process of the kernel and the index of the way that was used.
            on_refused: Called with the error if the kernel cannot be started and this method does not raise the error.

        Raises:
            RpcError: The image cannot run the language, or the program of the kernel cannot be started.
        """

        def on_spare(kernel: KernelProcess | None) -> None:
            if kernel is not None:
                on_created(kernel, attempt)
                return
            try:
                self.start(language, env, cwd, attempt + 1, on_created, on_refused)
            except RpcError as error:
                on_refused(error)

        order = START_ORDER[language]
        number = attempt
        if order[number] == SPARE:
            if self._prefork.acquire(env, on_spare):
                return
            number += 1
        on_created(self._spawn(language, env, cwd, plain=order[number] == PLAIN), number)

    def _spawn(self, language: str, env: dict[str, str], cwd: str, *, plain: bool) -> KernelProcess:
        user = lookup_account(self._identity.user)
        argv = languages.kernel_argv(language, self._identity.environment(user, env), plain=plain)
        pipes = KernelPipes(has_flush_pipe=language == "python")
        kernel_ends = pipes.kernel_channel
        try:
            pid = self._spawner.spawn(
                [*argv, *map(str, kernel_ends)],
                user,
                (self._spawner.dev_null, *pipes.kernel_output),
                None,
                env=env,
                cwd=cwd,
                keep=kernel_ends,
            )
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_kernel_ends()
        kernel = KernelProcess(self._loop, pid, pipes, self._groups.create(pid, user), env)
        self._children.add(pid, kernel)
        return kernel
