"""Commands to a running runsc through its command line, which works with every release.

nsenter(1) of util-linux runs the commands in the mount namespace in which the sandbox was started, because runsc looks for its state at paths that
are valid only there. Folders of the host are passed as file descriptors, because their paths may not exist in this namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from sandlot.drivers.oci.runtime import EngineError, Program, RunningOciRuntime, shorten_message
from sandlot.host.blocking import run_in_own_thread
from sandlot.host.process_identity import open_process

_TIMEOUT_S = 600.0
Flags = Callable[[Program, int], tuple[str, ...]]


class CliEngine:
    """The :class:`~sandlot.drivers.oci.runtime.Engine` that runs a ``runsc`` command for each operation.

    Args:
        flags: Function that takes a program and a disk limit in bytes, and returns the path of runsc and the flags that precede every command.
    """

    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    async def set_up(self, running: RunningOciRuntime) -> None:
        """Do nothing: the commands of :meth:`start` and :meth:`restore` set up the sandbox themselves."""

    async def start(self, running: RunningOciRuntime) -> None:
        """Start the guest."""
        await self._run(running, "start")

    async def restore(self, running: RunningOciRuntime, image: Path) -> None:
        """Restore a snapshot, whose files are in the folder ``image``, into a sandbox whose runtime processes exist."""
        await self._run(running, "restore", "-detach", image=image)

    async def save(self, running: RunningOciRuntime, image: Path) -> None:
        """Write a snapshot into ``image`` without compression: compressed files take 3 to 5 times as long to write and to read."""
        await self._run(running, "checkpoint", "-leave-running", "-compression=none", image=image)

    async def _run(self, running: RunningOciRuntime, *command: str, image: Path | None = None) -> None:
        await run_in_own_thread(_run_in_namespace, running, self._flags(running.program, 0), command, image)


def _run_in_namespace(running: RunningOciRuntime, flags: tuple[str, ...], command: tuple[str, ...], image: Path | None) -> None:
    argv = (*flags, *command)
    with contextlib.ExitStack() as handles:
        keeper = open_process(running.started.keeper)
        if keeper is None:
            raise EngineError("the sandbox has ended")
        handles.callback(os.close, keeper)
        try:
            namespace = os.open(f"/proc/{running.started.keeper.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            handles.callback(os.close, namespace)
            inherited = [namespace]
            if image is not None:
                folder = os.open(image, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                handles.callback(os.close, folder)
                inherited.append(folder)
                argv = (*argv, f"-image-path=/proc/self/fd/{folder}")
            done = subprocess.run(
                ["nsenter", f"--mount=/proc/self/fd/{namespace}", "--", *argv, running.folder.ref],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"PATH": os.defpath},
                cwd="/",
                pass_fds=inherited,
                umask=0o077,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"runsc {command[0]} has not ended within {_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise EngineError(f"runsc could not be run: {error.strerror}") from error
    if done.returncode != 0:
        raise EngineError(_first_message(done.stderr.decode(errors="replace")) or f"runsc ended with code {done.returncode}")


def _first_message(text: str) -> str:
    """Return the first message of runsc's error output; a stack trace may follow it."""
    first = text.strip().partition("\n")[0]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        first = str(json.loads(first)["msg"])
    return shorten_message(first)
