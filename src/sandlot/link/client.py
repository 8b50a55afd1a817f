"""One multiplexed connection to one guest, with typed calls.

- The host gives each call an id of 16 bytes, so that the guest recognizes a call that the host repeats on a new link.
- If the task that waits for a call is cancelled, the stream of the call is reset. A process or cell that the call started keeps running, and a later
  call can attach to it. An incomplete upload leaves the old file unchanged, unless the upload appends to the file or writes in place.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence

from sandlot.link import parse
from sandlot.link.files import FileRequests
from sandlot.link.kernels import KernelRequests
from sandlot.link.processes import ProcessRequests
from sandlot.link.services import GuestService
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.tunnels import Tunnel
from sandlot.link.turns import LinkTurns
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError
from sandlot.model.paths import WORKSPACE
from sandlot.model.ports import ByteStream
from sandlot.model.sandboxes import GuestStatus
from sandlot.model.specs import User

HANDSHAKE_TIMEOUT_S = 30.0
QUIESCE_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 300.0
WARM_TIMEOUT_S = 120.0
_ENTROPY_BYTES = 64


class Link:
    """The host's end of the link to one guest, created by :meth:`open`.

    Calls about processes, kernels and files are methods of ``link.processes``, ``link.kernels`` and ``link.files``.

    Args:
        session: Session of the link. Its handshake must be complete.
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
        services: Mapping[str, GuestService] | None = None,
        turns: LinkTurns | None = None,
        timeout_s: float = HANDSHAKE_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Link:
        """Open a link to a guest. Bytes of an earlier link that are still in the pipes are discarded.

        Args:
            stream: Byte stream to the guest. The link closes the stream in :meth:`aclose`, and also if this method raises.
            services: Services of the host that the guest may use, by name. None: the guest may use no service.
            turns: Pauses of all links of the service. None: this link is the only one.
            timeout_s: Maximum duration of the handshake in seconds.
            request_timeout_s: Default timeout in seconds of later requests that have one short response. All other calls have no timeout.

        Raises:
            TimeoutExceededError: The guest did not respond in time.
            SandboxEndedError: The sandbox has ended, or its guest speaks a generation of the protocol that this host does not support.
        """
        session = LinkSession(stream, services=services or {}, turns=turns or LinkTurns(), request_timeout_s=request_timeout_s)
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
    def closed(self) -> bool:
        """True if the link has ended."""
        return self._session.transport.closed.done()

    async def wait_closed(self) -> LinkClosed:
        """Wait until the link has ended, and return how it ended. Any number of callers may wait."""
        return await asyncio.shield(self._session.transport.closed)

    def set_services(self, services: Mapping[str, GuestService]) -> None:
        """Replace the services of the host that the guest may use. A warm sandbox gets its services when its owner is known.

        Args:
            services: New services by name.
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
        user: User = User.USER,
        workspace: str = WORKSPACE,
        memory_bytes: int | None = None,
        local_domains: Sequence[str] = (),
        processors: int | None = None,
    ) -> str | None:
        """Wake a guest that is asleep after a boot, restore, fork or hibernation, and give the guest the identity of its sandbox.

        The guest also gets new entropy and the current time from this host.

        Args:
            identity: Id of the sandbox.
            hostname: Host name of the sandbox.
            env: Environment variables for every program in the sandbox.
            pids: Maximum number of processes and threads.
            deadline_s: Seconds from now until the guest ends by itself; None sets no deadline. :meth:`set_deadline` can change the deadline.
            user: User that code runs as.
            workspace: Default working folder.
            local_domains: Domains of :meth:`set_local_domains`.
            memory_bytes: Memory limit of the sandbox in bytes; None if unknown. In gVisor, the guest kills the largest process
                before the limit is reached, so that the host does not kill the whole sandbox.
            processors: Number of processors that programs in the sandbox see, at least 1. If fewer exist, programs see these. None leaves the number
                unchanged. Only for runtimes that do not enforce the affinity of processes.

        Returns:
            Path of the Python interpreter of the image; None if the image has no Python.

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
            "processors": processors,
            "deadline_s": deadline_s,
            "workspace": workspace,
            "user": user.value,
            "local_domains": list(local_domains),
        }
        python = await self._session.request("guest.wake", args, parse.python, while_asleep=True)
        self._session.transport.connection.asleep = False
        return python

    async def checkpoint(self, *, armed: bool) -> None:
        """Tell the guest that a checkpoint of its running sandbox is about to begin or is over. Call this method before and after each checkpoint.

        Streams, processes and cells of this guest continue after the checkpoint. Its connections to other hosts do not: the guest resets them when
        the checkpoint begins, because no reset would reach a program in a copy, and accepts connections again when the checkpoint is over. A guest
        that is restored from the checkpoint is asleep and serves only :meth:`wake`. If this link ends between the two calls of this method, this
        guest is also asleep on the next link.

        Between the two calls of this method, the host sends nothing to the guest, and all other calls wait. If a byte arrived while gVisor (20240729)
        saves its state, the saved epoll instance could record that the link is ready and yet never report it. A guest that is restored from such an
        image would never read from the link again.

        Args:
            armed: True before the checkpoint. False after the checkpoint, even if the checkpoint failed.

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

        The method returns when both are ready, or at once if the image cannot run Python kernels. The host calls this method before it takes the
        snapshot of a template. The preparation leaves no other process running than the fork server and the kernel.

        Args:
            timeout_s: Maximum time to wait in seconds. After a timeout, the guest continues its preparation.
            lean: True to end the fork server and keep only the first kernel. This saves memory: with numpy, pandas and Matplotlib in gVisor, 97 MiB
                are in use instead of 160 MiB (measured). When another kernel is needed, the guest starts the fork server again in about a second.

        Raises:
            TimeoutExceededError: The kernel was not ready in time.
            SandlotError: The guest failed or is asleep, or the link has ended.
        """
        await self._session.request("guest.warm", {"lean": lean}, parse.nothing, timeout_s=timeout_s)

    async def info(self) -> GuestStatus:
        """Return the state and the resource use of the guest."""
        return await self._session.request("guest.info", {}, parse.guest_info)

    async def set_deadline(self, seconds: float | None) -> None:
        """Set the deadline at which the guest ends by itself.

        Args:
            seconds: Seconds from now until the deadline; None removes the deadline.
        """
        await self._session.request("guest.deadline", {"deadline_s": seconds}, parse.nothing)

    async def set_limits(self, *, pids: int, memory_bytes: int | None = None, processors: int | None = None) -> None:
        """Change the limits that the guest itself enforces, and the number of processors that it shows.

        Args:
            pids: Maximum number of processes and threads, including those that run already.
            memory_bytes: Memory limit in bytes; None keeps the present limit.
            processors: Number of processors that programs see, as in :meth:`wake`; None keeps the present number.

        Raises:
            ConflictError: More than ``pids`` processes and threads run now. Nothing was changed.
        """
        await self._session.request("guest.limit", {"pids": pids, "memory_bytes": memory_bytes, "processors": processors}, parse.nothing)

    async def set_local_domains(self, domains: Sequence[str]) -> None:
        """Replace the domains whose names get addresses inside although they end in ``.local`` or ``.internal`` (``model.network.local_domains``).

        Args:
            domains: Domains in lower case, without wildcards.
        """
        await self._session.request("guest.network", {"local_domains": list(domains)}, parse.nothing)

    async def quiesce(self, timeout_s: float = QUIESCE_TIMEOUT_S) -> None:
        """Quiesce the guest, as described in :meth:`LinkSession.quiesce`. Wait at most ``timeout_s`` seconds."""
        await self._session.quiesce(timeout_s)

    async def shutdown(self) -> None:
        """Ask the guest to end. The sandbox may still run when this method returns; to wait for its end, use ``wait`` of the driver's instance."""
        try:
            await self._session.request("guest.shutdown", {}, parse.nothing)
        except SandboxEndedError:
            closed = self._session.transport.closed
            if closed.done() and closed.result().reason is LinkClosedReason.VIOLATION:
                raise

    async def connect_port(self, port: int) -> Tunnel:
        """Connect to a program that listens on a port of the sandbox's own loopback interface, and return the connection.

        Args:
            port: TCP port, 1 to 65535.

        Raises:
            NotFoundError: No program listens on the port (``port_not_found``).
            LimitError: Too many connections to ports are open (``limit_exceeded``).
            TimeoutExceededError: The program did not accept the connection in time.
        """
        self._session.check_usable()
        return await Tunnel(self._session.transport, port, call_id=new_call_id()).opened()

    async def aclose(self) -> None:
        """Close the host's end of the link. The sandbox keeps running, and a new link to the sandbox can be opened. Idempotent."""
        await self._session.aclose()
