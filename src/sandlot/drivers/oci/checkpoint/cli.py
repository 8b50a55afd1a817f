"""gVisor's command line: the way to talk to a sandbox that every release has.

The commands are run where the sandbox's stage is, because they look for its state where that put it: in its mount namespace, which
is entered by nsenter(1) of util-linux. Folders of the host are handed over as descriptors: their paths may mean nothing there.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from sandlot.drivers.oci.runtime import EngineError, Live, Program, words
from sandlot.host.processes import open_process
from sandlot.host.threads import run_apart

_PATIENCE_S = 600.0
Flags = Callable[[Program, int], tuple[str, ...]]


class CliEngine:
    """See :class:`~sandlot.drivers.oci.runtime.Engine`.

    Args:
        flags: The program and what is said to it before any command.
    """

    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    async def ready(self, live: Live) -> None:
        """Nothing: ``start`` and ``restore`` do it."""

    async def start(self, live: Live) -> None:
        """Start the guest."""
        await self._run(live, "start")

    async def restore(self, live: Live, image: Path) -> None:
        """Go on from images."""
        await self._run(live, "restore", "-detach", image=image)

    async def save(self, live: Live, image: Path) -> None:
        """Write images. Uncompressed: what is compressed takes 3 to 5 times as long to write and to read."""
        await self._run(live, "checkpoint", "-leave-running", "-compression=none", image=image)

    async def _run(self, live: Live, *command: str, image: Path | None = None) -> None:
        await run_apart(_run, live, (*self._flags(live.program, 0), *command), image)


def _run(live: Live, argv: tuple[str, ...], image: Path | None) -> None:
    with contextlib.ExitStack() as handles:
        keeper = open_process(live.started.keeper)
        if keeper is None:
            raise EngineError("the sandbox has ended")
        handles.callback(os.close, keeper)
        try:
            namespace = os.open(f"/proc/{live.started.keeper.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            handles.callback(os.close, namespace)
            given = [namespace]
            if image is not None:
                folder = os.open(image, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                handles.callback(os.close, folder)
                given.append(folder)
                argv = (*argv, f"-image-path=/proc/self/fd/{folder}")
            done = subprocess.run(
                ["nsenter", f"--mount=/proc/self/fd/{namespace}", "--", *argv, live.folder.ref],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={"PATH": os.defpath},
                cwd="/",
                pass_fds=given,
                umask=0o077,
                timeout=_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"runsc {argv[-1]} has not ended within {_PATIENCE_S:g} s") from None
        except OSError as error:
            raise EngineError(f"runsc could not be run: {error.strerror}") from error
    if done.returncode != 0:
        raise EngineError(_words(done.stderr.decode(errors="replace")) or f"runsc ended with code {done.returncode}")


def _words(text: str) -> str:
    """What it said first; a stack may follow."""
    first = text.strip().partition("\n")[0]
    with contextlib.suppress(ValueError, KeyError, TypeError):
        first = str(json.loads(first)["msg"])
    return words(first)
