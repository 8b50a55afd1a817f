"""One multiplexed connection to one guest, with typed calls.

- Each call has an id of 16 bytes that the host chooses, so that a call repeated on a new link is executed once.
- Cancelling a caller resets the stream of its call. Processes and cells continue and can be attached to; a partly written file is dropped.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping

from sandlot.link import parse
from sandlot.link.files import FileRequests
from sandlot.link.kernels import KernelRequests
from sandlot.link.processes import ProcessRequests
from sandlot.link.services import Service
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.tunnels import Tunnel
from sandlot.link.types import GuestInfo, LinkClosed, LinkClosedReason
from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError
from sandlot.model.ports import ByteStream
from sandlot.model.specs import WORKSPACE

HANDSHAKE_TIMEOUT_S = 30.0
QUIESCE_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 300.0
WARM_TIMEOUT_S = 120.0
_ENTROPY_BYTES = 64


class Link:
    """The host's end of the link to one guest, created by :meth:`open`.

    Calls about processes, kernels and files are methods of ``link.processes``, ``link.kernels`` and ``link.files``.

    Args:
        session: The link.
    """

    def __init__(self, session: LinkSession) -> None:
        self._session = session
        self.processes = ProcessRequests(session)
        self.kernels = KernelRequests(session)
        self.files = FileRequests(session)

    @classmethod
    async def open(
        cls,
        stream: ByteStream,
        *,
        services: Mapping[str, Service] | None = None,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Link:
        """Open a link to a guest. Bytes of an earlier link that are still in the pipes are discarded.

        Args:
            stream: The bytes of the link. The link owns the stream from now on, even if this call raises.
            services: Services that the guest may use, by name.
            timeout_s: Maximum duration of the handshake in seconds.
            request_timeout_s: Maximum duration of a later request with a short response, in seconds.

        Raises:
            TimeoutExceededError: The guest did not respond in time.
            SandboxEndedError: The guest ended, or speaks another generation of the protocol.
        """
        session = LinkSession(stream, services=services or {}, request_timeout_s=request_timeout_s)
        try:
            await session.handshake(timeout_s)
        except BaseException:
            await session.aclose()
            raise
        return cls(session)

    @property
    def asleep(self) -> bool:
        """True while the guest serves only :meth:`wake`."""
        return self._session.transport.connection.asleep

    @property
    def generation(self) -> int:
        """Generation of the protocol that the guest speaks."""
        return self._session.transport.connection.generation

    @property
    def closed(self) -> bool:
        """True if the link has ended."""
        return self._session.transport.closed.done()

    async def wait_closed(self) -> LinkClosed:
        """Wait until the link has ended, and return the reason. Any number of callers may wait."""
        return await asyncio.shield(self._session.transport.closed)

    def set_services(self, services: Mapping[str, Service]) -> None:
        """Replace the services that the guest may use.

        Args:
            services: Services by name. For a warm sandbox, they are set when its owner is known.
        """
        self._session.services.replace(services)

    async def wake(
        self,
        *,
        identity: str,
        hostname: str,
        env: Mapping[str, str],
        pids: int,
        deadline_s: float | None,
        workspace: str = WORKSPACE,
        memory_bytes: int | None = None,
    ) -> str | None:
        """Give the guest its identity, after a boot, restore, fork or wake. Entropy and the clock come from this host.

        Args:
            identity: Id of the sandbox.
            hostname: Host name of the sandbox.
            env: Environment of every program in the sandbox.
            pids: Maximum number of processes and threads.
            deadline_s: Seconds from now until the guest ends by itself, unless a later deadline is set; None sets no deadline.
            workspace: Default working folder.
            memory_bytes: Memory limit. Near it, the guest kills the largest program, so that the sandbox is not killed. None if unknown.

        Returns:
            Path of the Python interpreter of the image; None if there is none.

        Raises:
            ConflictError: The guest is awake.
            SandboxEndedError: The link has ended.
        """
        if not self.asleep and not self.closed:
            raise ConflictError("The sandbox is awake already.", code=ErrorCode.CONFLICT)
        args = {
            "identity": identity,
            "hostname": hostname,
            "env": dict(env),
            "entropy": os.urandom(_ENTROPY_BYTES),
            "clock_unix_ns": time.time_ns(),
            "pids": pids,
            "memory_bytes": memory_bytes,
            "deadline_s": deadline_s,
            "workspace": workspace,
        }
        python = await self._session.request("guest.wake", args, parse.python, while_asleep=True)
        self._session.transport.connection.asleep = False
        return python

    async def checkpoint(self, *, armed: bool) -> None:
        """Inform the guest before and after a checkpoint that it survives.

        Streams, processes and cells continue. A guest that is restored from the checkpoint is asleep: it serves only :meth:`wake`. If this
        link ends between the two calls, the guest itself is asleep on the next link.

        Between the two calls, nothing is sent, and other calls wait. Reason: if a byte arrives while gVisor (20240729) saves its own state,
        the saved epoll may count the link as ready without reporting it. A guest that is restored from such an image never reads again.

        Args:
            armed: True before the checkpoint; False after it, even if it failed.

        Raises:
            SandlotError: The guest is asleep, or the link has ended.
        """
        self._session.transport.resume_sending()
        try:
            await self._session.request("guest.checkpoint", {"armed": armed}, parse.nothing, is_last=armed)
        except BaseException:
            self._session.transport.resume_sending()
            raise

    async def warm(self, timeout_s: float = WARM_TIMEOUT_S, *, lean: bool = False) -> None:
        """Start the fork server for Python kernels and the first kernel, so that the first cell need not wait for them.

        Returns when both are ready, or at once if the image cannot run Python kernels. Used before the snapshot of a template is taken: no
        other process keeps running.

        Args:
            timeout_s: Maximum time to wait in seconds. After a timeout, the guest continues its preparation.
            lean: True to keep only the first kernel, which takes half the memory (97 MiB instead of 160 with numpy, pandas and Matplotlib in
                gVisor, measured). The fork server is then started again, in about a second, when another kernel is needed.

        Raises:
            TimeoutExceededError: The kernel was not ready in time.
            SandlotError: The guest failed or is asleep, or the link has ended.
        """
        await self._session.request("guest.warm", {"lean": lean}, parse.nothing, timeout_s=timeout_s)

    async def info(self) -> GuestInfo:
        """Return the state and the resource use of the guest."""
        return await self._session.request("guest.info", {}, parse.guest_info)

    async def set_deadline(self, seconds: float | None) -> None:
        """Set the seconds from now until the guest ends by itself; None sets no deadline."""
        await self._session.request("guest.deadline", {"deadline_s": seconds}, parse.nothing)

    async def set_limits(self, *, pids: int, memory_bytes: int | None = None) -> None:
        """Change the limits that the guest itself enforces.

        Args:
            pids: Maximum number of processes and threads, including those that run already.
            memory_bytes: Memory limit; None keeps the present limit.

        Raises:
            ConflictError: More processes than ``pids`` run now; nothing was changed.
        """
        await self._session.request("guest.limit", {"pids": pids, "memory_bytes": memory_bytes}, parse.nothing)

    async def quiesce(self, timeout_s: float = QUIESCE_TIMEOUT_S) -> None:
        """Quiesce the guest; see :meth:`LinkSession.quiesce`."""
        await self._session.quiesce(timeout_s)

    async def shutdown(self) -> None:
        """Request the end of the guest. The driver reports when the sandbox has ended."""
        try:
            await self._session.request("guest.shutdown", {}, parse.nothing)
        except SandboxEndedError:
            closed = self._session.transport.closed
            if closed.done() and closed.result().reason is LinkClosedReason.VIOLATION:
                raise

    async def connect_port(self, port: int) -> Tunnel:
        """Connect to a program that listens on a port of the sandbox's own loopback interface.

        Args:
            port: 1 to 65535.

        Raises:
            NotFoundError: ``port_not_found``: no program listens on the port.
            LimitError: ``limit_exceeded``: too many connections are open.
            TimeoutExceededError: The program does not accept the connection.
        """
        self._session.check_usable()
        return await Tunnel(self._session.transport, port, call_id=new_call_id()).opened()

    async def aclose(self) -> None:
        """Close this end. The sandbox keeps running, and a new link can be opened to it. Idempotent."""
        await self._session.aclose()
