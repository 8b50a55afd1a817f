"""Commands to a running runsc through its control socket.

Each command of runsc's command line is a process that reads the sandbox's state, connects to this socket, sends one message and ends. This takes 15
to 40 ms and as much processor time. Using the socket directly saves this time. The protocol of the socket is internal to runsc: JSON objects over a
stream socket, files sent as SCM_RIGHTS with the first byte (unix(7)), one response to each request. So the socket is used only with releases that
were tested (``gvisor/runtime.py``). All other releases are controlled through their command line (``command_line.py``). Both ways pass the same
tests.

Invariants:
- The socket is reached through a file descriptor of its folder, because its path may be longer than 107 bytes, the maximum of a socket address.
- The service connects as root of the host. Nothing inside the sandbox can reach the socket, which is in the host's file system.
- The sandbox always continues after a checkpoint (``Resume``). Without ``Resume``, the sandbox would end even if the disk is full and the snapshot
  was not written.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from sandlot.drivers.oci.runtime import EngineError, RunningOciRuntime, shorten_message
from sandlot.drivers.oci.snapshots.image_files import MEMORY, MEMORY_INDEX, STATE
from sandlot.host.nat_table import nat_table
from sandlot.protocol.schema import NETWORK_ADDRESS

RESPONSE_TIMEOUT_S = 600.0
"""Enough time for a checkpoint of many GiB to a slow disk. If the sandbox ends, the wait ends at once."""
_CHUNK_BYTES = 64 * 1024
_MAX_RESPONSE_BYTES = 1024 * 1024

_LOOPBACK = {
    "Name": "lo",
    "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
    "Routes": [
        {"Destination": {"IP": "127.0.0.0", "Mask": base64.b64encode(bytes((255, 0, 0, 0))).decode()}},
        {"Destination": {"IP": "::1", "Mask": base64.b64encode(bytes((255,)) * 16).decode()}},
    ],
}
"""The loopback device, as runsc's command line configures it before it starts or restores a sandbox."""
_CARD = {
    "Name": "eth0",
    "Addresses": [{"Address": NETWORK_ADDRESS, "PrefixLen": 32}],
    "Routes": [{"Destination": {"IP": str(IPv4Address(0)), "Mask": base64.b64encode(bytes(4)).decode()}}],
}
"""Network card with the default route. The card is a loopback device, so nothing leaves the sandbox, and gVisor can save connections that use it. The
card must exist before a restore: gVisor's kernel panics if it restores a connection whose address is missing."""


class ControlEngine:
    """The :class:`~sandlot.drivers.oci.runtime.Engine` that uses the control socket."""

    async def set_up(self, running: RunningOciRuntime) -> None:
        """Create the loopback device of the sandbox, its network card, and a NAT table that redirects its connections to the guest."""
        table = os.memfd_create("nat")
        try:
            os.pwrite(table, nat_table(), 0)
            await call(running, "Network.CreateLinksAndRoutes", {"LoopbackLinks": [_LOOPBACK, _CARD], "NATBlob": True}, [table])
        finally:
            os.close(table)

    async def start(self, running: RunningOciRuntime) -> None:
        """Start the guest."""
        await call(running, "containerManager.StartRoot", running.folder.ref)

    async def restore(self, running: RunningOciRuntime, image: Path) -> None:
        """Restore a snapshot, whose files are in the folder ``image``, into a sandbox whose runtime processes exist."""
        with _open_images(image, os.O_RDONLY) as files:
            await call(running, "containerManager.Restore", {"HavePagesFile": True, "HaveDeviceFile": False}, files)

    async def save(self, running: RunningOciRuntime, image: Path) -> None:
        """Write a snapshot into the existing empty folder ``image``."""
        options = {"metadata": {"compression": "none"}, "have_pages_file": True, "Resume": True}
        with _open_images(image, os.O_RDWR | os.O_CREAT | os.O_EXCL) as files:
            await call(running, "containerManager.Checkpoint", options, files)


async def call(running: RunningOciRuntime, method: str, argument: object, files: Sequence[int] = ()) -> Any:  # noqa: ANN401 - depends on the method
    """Send one request to the runtime of a sandbox and return the result.

    Args:
        running: Running runtime of the sandbox.
        method: Method of runsc's boot controller.
        argument: Argument of the method. It is encoded as JSON.
        files: File descriptors that are sent with the request. The caller closes them.

    Raises:
        EngineError: The runtime refused the request, ended, or sent no response within :data:`RESPONSE_TIMEOUT_S` seconds.
    """
    message = json.dumps({"method": method, "arg": argument}).encode()
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            with _connect(running) as connection:
                # The message is far smaller than the buffer of a new socket, so it is sent as a whole or not at all.
                sent = socket.send_fds(connection, [message], list(files)) if files else connection.send(message)
                if sent != len(message):
                    raise EngineError("the runtime does not read its control socket")
                response = await _receive_response(connection)
    except TimeoutError:
        raise EngineError(f"the runtime sent no response within {RESPONSE_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise EngineError(f"the runtime cannot be reached ({error.strerror})") from error
    if not response.get("success"):
        raise EngineError(shorten_message(str(response.get("err") or "the runtime refused without a reason")))
    return response.get("result")


@contextlib.contextmanager
def _connect(running: RunningOciRuntime) -> Any:  # noqa: ANN401 - an iterator of one socket
    folder = os.open(running.folder.control.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with connection:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{folder}/{running.folder.control.name}")
            yield connection
    finally:
        os.close(folder)


async def _receive_response(connection: socket.socket) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    text = b""
    while True:
        more = await loop.sock_recv(connection, _CHUNK_BYTES)
        if not more:
            raise EngineError("the runtime closed its control socket")
        text += more
        if len(text) > _MAX_RESPONSE_BYTES:
            raise EngineError(f"the runtime's response is longer than {_MAX_RESPONSE_BYTES} bytes")
        # The response has no length prefix: it is complete when it can be parsed.
        with contextlib.suppress(ValueError):
            response = json.loads(text)
            if isinstance(response, dict):
                return response
            raise EngineError("the runtime's response is not a JSON object")


@contextlib.contextmanager
def _open_images(image: Path, flags: int) -> Any:  # noqa: ANN401 - an iterator of three descriptors
    handles: list[int] = []
    try:
        # runsc expects this order: the state, the index of the memory, the memory.
        for name in (STATE, MEMORY_INDEX, MEMORY):
            try:
                handles.append(os.open(image / name, flags | os.O_CLOEXEC, 0o600))
            except OSError as error:
                raise EngineError(f"the snapshot file {name} cannot be opened: {error.strerror}") from error
        yield handles
    finally:
        for handle in handles:
            os.close(handle)
