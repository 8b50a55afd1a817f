"""gVisor's control socket: what its own command line says to a sandbox, said without starting that.

A command of runsc's is a process that reads the sandbox's state, connects to this socket, sends one message and ends: 15 to 40 ms
and as much processor time for a message that is answered in one. The protocol is internal to runsc: JSON objects over a stream
socket, files as SCM_RIGHTS beside the first byte (unix(7)), one answer to each. So it is spoken only with releases that it was tried
with (``gvisor/runtime.py``); everything else goes through the command line (``cli.py``), and both are tested with the same tests.

Laws:
- The socket is reached through a descriptor of its folder: its whole path may be longer than the 107 bytes that an address can have.
- The service connects as root of the host; nothing of the sandbox's own can reach the socket, which lies in the host's file system.
- A checkpoint always asks the sandbox to go on: asked to end, it would end also where the disk is full and nothing was written.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.checkpoint.images import MEMORY, MEMORY_INDEX, STATE
from sandlot.drivers.oci.runtime import EngineError, Live, words

PATIENCE_S = 600.0
"""For an answer: a checkpoint of many GiB to a slow disk. A sandbox that ends is noticed at once."""
_CHUNK_BYTES = 64 * 1024
_MOST_BYTES = 1024 * 1024
"""Of an answer."""

_LOOPBACK = {
    "Name": "lo",
    "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
    "Routes": [
        {"Destination": {"IP": "127.0.0.0", "Mask": base64.b64encode(bytes((255, 0, 0, 0))).decode()}},
        {"Destination": {"IP": "::1", "Mask": base64.b64encode(bytes((255,)) * 16).decode()}},
    ],
}
"""What the command line gives every sandbox without a network before it starts or restores it."""


class ControlEngine:
    """See :class:`~sandlot.drivers.oci.runtime.Engine`."""

    async def ready(self, live: Live) -> None:
        """Give it its loopback device."""
        await call(live, "Network.CreateLinksAndRoutes", {"LoopbackLinks": [_LOOPBACK]})

    async def start(self, live: Live) -> None:
        """Start the guest."""
        await call(live, "containerManager.StartRoot", live.folder.ref)

    async def restore(self, live: Live, image: Path) -> None:
        """Go on from images."""
        with _opened(image, os.O_RDONLY) as files:
            await call(live, "containerManager.Restore", {"HavePagesFile": True, "HaveDeviceFile": False}, files)

    async def save(self, live: Live, image: Path) -> None:
        """Write images."""
        options = {"metadata": {"compression": "none"}, "have_pages_file": True, "Resume": True}
        with _opened(image, os.O_RDWR | os.O_CREAT | os.O_EXCL) as files:
            await call(live, "containerManager.Checkpoint", options, files)


async def call(live: Live, method: str, argument: object, files: Sequence[int] = ()) -> Any:  # noqa: ANN401 - whatever the method gives
    """Say one thing to a sandbox, and return what it answers.

    Args:
        live: The sandbox.
        method: Of runsc's boot controller.
        argument: As JSON.
        files: Descriptors that go with it; they stay the caller's.

    Raises:
        EngineError: It refused; it ended; nothing was heard for :data:`PATIENCE_S`.
    """
    message = json.dumps({"method": method, "arg": argument}).encode()
    try:
        async with asyncio.timeout(PATIENCE_S):
            with _connected(live) as connection:
                # Far smaller than an empty socket's buffer: whole at once, or an error.
                sent = socket.send_fds(connection, [message], list(files)) if files else connection.send(message)
                if sent != len(message):
                    raise EngineError("the runtime does not read what it is told")
                answer = await _answer(connection)
    except TimeoutError:
        raise EngineError(f"the runtime has not answered for {PATIENCE_S:g} s") from None
    except OSError as error:
        raise EngineError(f"the runtime cannot be reached ({error.strerror})") from error
    if not answer.get("success"):
        raise EngineError(words(str(answer.get("err") or "the runtime refused without a word")))
    return answer.get("result")


@contextlib.contextmanager
def _connected(live: Live) -> Any:  # noqa: ANN401 - an iterator of one socket
    folder = os.open(live.folder.control.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{folder}/{live.folder.control.name}")
            yield connection
    finally:
        os.close(folder)


async def _answer(connection: socket.socket) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    text = b""
    while True:
        more = await loop.sock_recv(connection, _CHUNK_BYTES)
        if not more:
            raise EngineError("the sandbox has ended")
        text += more
        if len(text) > _MOST_BYTES:
            raise EngineError("the runtime's answer is too long")
        # Nothing in front says how long it is.
        with contextlib.suppress(ValueError):
            answer = json.loads(text)
            if isinstance(answer, dict):
                return answer
            raise EngineError("the runtime's answer is none")


@contextlib.contextmanager
def _opened(image: Path, flags: int) -> Any:  # noqa: ANN401 - an iterator of three descriptors
    handles: list[int] = []
    try:
        # In this order: the state, the index of the memory, the memory.
        for name in (STATE, MEMORY_INDEX, MEMORY):
            try:
                handles.append(os.open(image / name, flags | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise EngineError(f"{name}: {error.strerror}") from error
        yield handles
    finally:
        for handle in handles:
            os.close(handle)
