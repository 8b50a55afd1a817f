"""One multiplexed connection to one guest, with typed calls.

Laws (and those of :mod:`sandlot.link.session`):
- Every call carries a host-chosen id of 16 bytes, so that one that is said again over a new link is not done twice.
- Cancelling a caller resets its stream. Processes and cells live on and can be attached to; a file half written is dropped.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterable, Mapping
from functools import partial

from sandlot.link import parse
from sandlot.link.calls import Call, CellCall, ProcessCall
from sandlot.link.files import FileReader, Upload
from sandlot.link.kernels import Kernels
from sandlot.link.services import Service
from sandlot.link.session import GREETING_TIMEOUT_S, PATIENCE_S, new_call_id
from sandlot.link.tunnels import Tunnel
from sandlot.link.types import Entry, GuestInfo, Listing, LostReason, ProcessInfo, ProcessResult
from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.ports import ByteStream
from sandlot.model.specs import WORKSPACE, ProcessSpec, User
from sandlot.protocol import schema

__all__ = ["CellCall", "FileReader", "Link", "ProcessCall", "Service", "Tunnel"]

WARM_TIMEOUT_S = 120.0
_ENTROPY_BYTES = 64


class Link(Kernels):
    """The host's end of the link to one guest; made by :meth:`greet`."""

    @classmethod
    async def greet(
        cls,
        stream: ByteStream,
        *,
        services: Mapping[str, Service] | None = None,
        timeout_s: float = GREETING_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> Link:
        """Greet a guest, whatever lies in the pipes from before.

        Args:
            stream: The bytes; the link owns it from now on, also where this raises.
            services: What the guest may ask of the host: name -> service.
            timeout_s: Seconds until it is given up; HELLO is said again every 2 s.
            patience_s: Seconds until a later call that should be short is given up.

        Raises:
            TimeoutExceededError: No echo in time.
            SandboxEndedError: The guest ended, or speaks another generation.
        """
        link = cls(stream, services=services, patience_s=patience_s)
        try:
            await link._greet(timeout_s)
        except BaseException:
            await link.aclose()
            raise
        return link

    # -- life -------------------------------------------------------------------------------------------------------

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
        """Make the guest somebody, after boot, restore, fork and wake. Randomness and the clock come from this host.

        Args:
            identity: The sandbox's id.
            hostname: What it calls itself.
            env: Environment of everything in it.
            pids: Processes and threads that it may have.
            deadline_s: Seconds from now until the guest ends by itself unless it hears of a later one; None is never.
            workspace: The default working folder.
            memory_bytes: Its limit of memory, by which the guest ends who is greedy before the sandbox ends; None is not known.

        Returns:
            Where the image has its python; None where it has none.

        Raises:
            ConflictError: It is awake.
            SandboxEndedError: The link is over.
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
        python = await self.ask("guest.wake", args, parse.python, while_asleep=True)
        self._pump.connection.asleep = False
        return python

    async def checkpoint(self, *, armed: bool) -> None:
        """Around a checkpoint that the guest outlives: say that one is about to be taken, and afterwards that it has been.

        Nothing is disturbed: streams, processes and cells go on. What is restored from a checkpoint that was taken in between is
        asleep when it is greeted, and serves nothing until :meth:`wake`; so is the guest itself where this link ends in between.

        In between nothing is sent either; what is asked for meanwhile is asked after it. A byte that reaches gVisor (20240729) while it
        writes its own state can leave the image with an epoll that takes the link for ready and yet does not list it: no guest that is
        restored from it ever hears anything.

        Args:
            armed: True before the checkpoint, False after it, also where it failed.

        Raises:
            SandlotError: The guest is asleep, or the link is over.
        """
        self._pump.go_on()
        try:
            await self.ask("guest.checkpoint", {"armed": armed}, parse.nothing, is_last=armed)
        except BaseException:
            self._pump.go_on()
            raise

    async def warm(self, timeout_s: float = WARM_TIMEOUT_S, *, lean: bool = False) -> None:
        """Let the guest make ready now what a first cell needs: what kernels are forked from, and the first kernel.

        Returns when that is there, or at once where the image has no python kernel with anything to make ready. For templates: nothing
        of the making is left over but the processes that wait.

        Args:
            timeout_s: Seconds until it is given up; the guest goes on all the same.
            lean: Whether only the first kernel is left, which takes half the memory (97 MiB for 160 with numpy, pandas and Matplotlib in
                gVisor, measured): what kernels are forked from is made anew, in about a second, when another one is asked for.

        Raises:
            TimeoutExceededError: It was not ready in time.
            SandlotError: The guest could not make it, is asleep, or the link is over.
        """
        await self.ask("guest.warm", {"lean": lean}, parse.nothing, timeout_s=timeout_s)

    async def info(self) -> GuestInfo:
        """What the guest says of itself."""
        return await self.ask("guest.info", {}, parse.guest_info)

    async def set_deadline(self, seconds: float | None) -> None:
        """Seconds from now until the guest ends by itself; None is never."""
        await self.ask("guest.deadline", {"deadline_s": seconds}, parse.nothing)

    async def set_limits(self, *, pids: int, memory_bytes: int | None = None) -> None:
        """Move the limits that the guest itself keeps.

        Args:
            pids: Processes and threads, of those that run as of those that will.
            memory_bytes: None is as before.

        Raises:
            ConflictError: More run now; nothing was changed.
        """
        await self.ask("guest.limit", {"pids": pids, "memory_bytes": memory_bytes}, parse.nothing)

    async def shutdown(self) -> None:
        """Ask the guest to end. It is gone when the driver says so."""
        try:
            await self.ask("guest.shutdown", {}, parse.nothing)
        except SandboxEndedError:
            if self._pump.lost.done() and self._pump.lost.result().reason is LostReason.VIOLATION:
                raise

    # -- processes --------------------------------------------------------------------------------------------------

    async def start(self, spec: ProcessSpec, *, id: ProcessId | None = None, attach: bool = True) -> ProcessCall:  # noqa: A002 - the word
        """Start a process, and return once it runs.

        Args:
            spec: What to run.
            id: Its id, where the caller chose one; a start with an id that the guest knows attaches to that process.
            attach: Whether to follow its output; otherwise ``result()`` comes at once, with reason None.

        Raises:
            SandlotError: It could not be started (no such program, folder, permission).
        """
        process = id or new_process_id()
        args = {
            "argv": list(spec.argv),
            "env": dict(spec.env),
            "cwd": spec.cwd,
            "user": spec.user.value,
            "stdin": spec.stdin,
            "timeout_s": spec.timeout_s,
            "attach": attach,
            "rows": spec.rows,
            "cols": spec.cols,
            "hidden": spec.hidden,
        }
        self.check_usable()
        call_id = bytes.fromhex(process)
        call = ProcessCall(self._pump, "process.start", args, process=process, call_id=call_id, stdin=spec.stdin or spec.pty, waits=attach)
        return await call.started()

    async def attach(self, id: ProcessId, *, stdout_from: int | None = 0, stderr_from: int | None = 0) -> ProcessCall:  # noqa: A002 - the word
        """Follow a process that was started before, running or ended.

        Args:
            id: The process.
            stdout_from: The byte offset to go on from; what is no longer kept is told as ``Lost``. None is the oldest kept.
            stderr_from: The same.

        Raises:
            NotFoundError: The guest knows no such process.
        """
        self.check_usable()
        args = {"process": id, "stdout_from": stdout_from, "stderr_from": stderr_from}
        call = ProcessCall(self._pump, "process.attach", args, process=id, call_id=new_call_id(), stdin=True)
        return await call.started()

    async def wait(self, id: ProcessId) -> ProcessResult:  # noqa: A002 - the word
        """How a process ended; waits for that, for as long as it takes, and reads none of its output.

        Args:
            id: The process.

        Raises:
            NotFoundError: The guest knows no such process.
            SandlotError: The link's end.
        """
        self.check_usable()
        call = Call(self._pump, "process.wait", {"process": id}, partial(parse.process_end, id), call_id=new_call_id())
        try:
            return await call.wait()
        finally:
            call.abandon()

    async def signal(self, id: ProcessId, signal: int) -> bool:  # noqa: A002 - the word
        """Send a process's group a signal; whether it was running."""
        return await self.ask("process.signal", {"process": id, "signal": signal}, parse.running)

    async def resize(self, id: ProcessId, rows: int, cols: int) -> bool:  # noqa: A002 - the word
        """Give a process's terminal another size; whether it was running.

        Raises:
            ConflictError: It has no terminal.
        """
        return await self.ask("process.resize", {"process": id, "rows": rows, "cols": cols}, parse.running)

    async def process(self, id: ProcessId) -> ProcessInfo:  # noqa: A002 - the word
        """What the guest knows of one process.

        Raises:
            NotFoundError: It knows none of this id.
        """
        return await self.ask("process.get", {"process": id}, partial(parse.process_known, id))

    async def processes(self) -> list[ProcessInfo]:
        """Every process that the guest knows of, but for those of the service's own."""
        return list(await self.ask("process.list", {}, parse.processes))

    async def forget(self, id: ProcessId) -> None:  # noqa: A002 - the word
        """Let the guest drop what it keeps of a process that ended."""
        await self.ask("process.forget", {"process": id}, parse.nothing)

    # -- files ------------------------------------------------------------------------------------------------------

    async def read_file(self, path: str, *, user: User = User.USER, offset: int = 0, length: int | None = None) -> FileReader:
        """Open a file and stream its bytes.

        Args:
            path: Absolute, inside the sandbox.
            user: As whom.
            offset: Bytes to skip.
            length: At most so many; None is to the end.

        Raises:
            NotFoundError: There is none.
            ForbiddenError: The user may not.
        """
        self.check_usable()
        reader = FileReader(self._pump, {"path": path, "user": user.value, "offset": offset, "length": length}, call_id=new_call_id())
        return await reader.opened()

    async def write_file(
        self,
        path: str,
        chunks: AsyncIterable[bytes] | bytes,
        *,
        user: User = User.USER,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> Entry:
        """Write a file: beside it and renamed at the end, so that a broken transfer leaves the old one.

        Args:
            path: Absolute, inside the sandbox.
            chunks: The body; an iterable is read as fast as the guest takes it.
            user: As whom.
            mode: Permission bits; None keeps those of the old file, or is 0644 less the umask.
            parents: Whether to make missing folders.
            append: Whether to add to the old file, in place.

        Raises:
            SandlotError: The guest's error (disk full, permission), or the link's end. What ``chunks`` raises comes through.
        """
        self.check_usable()
        args = {"path": path, "user": user.value, "mode": mode, "parents": parents, "append": append}
        return await Upload(self._pump, args, call_id=new_call_id()).run(chunks)

    async def stat(self, path: str, *, user: User = User.USER, follow: bool = True) -> Entry:
        """What is at a path; ``follow`` decides about a symlink at its end."""
        return await self.ask("file.stat", {"path": path, "user": user.value, "follow": follow}, parse.entry)

    async def list_dir(self, path: str, *, user: User = User.USER, limit: int = schema.LIMITS["entries"], offset: int = 0) -> Listing:
        """What a folder holds, by name.

        Args:
            path: Absolute, inside the sandbox.
            user: As whom.
            limit: At most so many entries, 1,000 in one call whatever is asked for.
            offset: Names to skip; the next page is at ``offset + limit``, also where entries vanished meanwhile.
        """
        limit = min(limit, schema.LIMITS["entries"])
        return await self.ask("file.list", {"path": path, "user": user.value, "limit": limit, "offset": offset}, parse.listing)

    async def mkdir(self, path: str, *, user: User = User.USER, parents: bool = True, mode: int | None = None) -> Entry:
        """Make a folder."""
        return await self.ask("file.mkdir", {"path": path, "user": user.value, "parents": parents, "mode": mode}, parse.entry)

    async def move(self, path: str, to: str, *, user: User = User.USER, overwrite: bool = False) -> Entry:
        """Rename; the entry at its new place."""
        return await self.ask("file.move", {"path": path, "to": to, "user": user.value, "overwrite": overwrite}, parse.entry)

    async def remove(self, path: str, *, user: User = User.USER, recursive: bool = False) -> int:
        """Remove a file, or a folder; how many entries were removed."""
        return await self.ask("file.remove", {"path": path, "user": user.value, "recursive": recursive}, parse.removed)

    # -- ports ------------------------------------------------------------------------------------------------------

    async def connect(self, port: int) -> Tunnel:
        """Connect to what listens on a port of the sandbox's own loopback.

        Args:
            port: 1 to 65535.

        Raises:
            NotFoundError: ``port_not_found``: nothing does.
            LimitError: ``limit_exceeded``: as many connections are open as may be.
            TimeoutExceededError: What listens there accepts nobody.
        """
        self.check_usable()
        return await Tunnel(self._pump, port, call_id=new_call_id()).opened()
