"""Helper programs of Sandlot that run inside a sandbox to pack, unpack, compare or watch the files of the sandbox (``guest/helpers/``).

Helpers run on the guest's own Python interpreter, so the root filesystem image needs no Python. Helpers are ordinary processes of the requested
user: they have the permissions of this user, and count against the limits of the sandbox.

Invariants:
- Helpers are not executions: they are not listed, not logged, and forgotten by the guest once they have ended.
- Closing a helper ends the program: its input is closed, then the program gets SIGTERM to clean up, then SIGKILL. A suspended sandbox is not
  resumed for this; the program is ended after the next resume.
- The output of a helper is not trusted: messages are checked and limited in size, and an error has one of the codes that a guest may send.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any, Final, Self

import structlog

from sandlot.core.sandbox import CALL_TIMEOUT_S, Hold, Sandbox
from sandlot.link.client import Link
from sandlot.link.payload import program_argv
from sandlot.link.processes import ProcessCall
from sandlot.model.errors import ConflictError, InternalError, SandboxEndedError, SandlotError, UnavailableError, from_code
from sandlot.model.executions import Channel, OutputGap
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.specs import ProcessSpec, User
from sandlot.protocol import schema, values
from sandlot.protocol.helpers import MAX_MESSAGE_BYTES

LEAVE_S: Final = 2.0
"""Seconds that a closed helper has to clean up between SIGTERM and SIGKILL."""

_ENV: Final[Mapping[str, str]] = {"LD_PRELOAD": "", "LD_AUDIT": "", "LD_DEBUG": "", "MALLOC_PERTURB_": ""}
"""Environment of helpers. It clears variables of libc and the dynamic loader (ld.so(8)) that the environment of the sandbox may set."""
_HINT_CHARS: Final = 1000
_MARK: Final = "\0"
_PREFIX: Final = program_argv(_MARK)
_START: Final = _PREFIX[-1].partition(_MARK)[0]

_log = structlog.get_logger("sandlot.core")


def is_helper(argv: Sequence[str]) -> bool:
    """Return True if ``argv`` is the command line of one of Sandlot's helper programs, which run inside sandboxes."""
    return len(argv) == len(_PREFIX) and tuple(argv[:-1]) == _PREFIX[:-1] and argv[-1].startswith(_START)


class GuestHelper:
    """One running helper. Iterating yields the bytes and messages that the helper sends, and raises the error that it reports.

    Args:
        sandbox: Sandbox of the helper.
        call: Call to the guest that started the helper.
        name: Name of the helper.
        holds: True if the sandbox must not count as idle while the helper runs.
    """

    __slots__ = ("_call", "_closed", "_hold", "_messages", "_name", "_over", "_received", "_sandbox", "_verdict")

    def __init__(self, sandbox: Sandbox, call: ProcessCall, name: str, *, holds: bool = True) -> None:
        self._sandbox = sandbox
        self._closed = False
        self._call = aiter(call)
        self._name = name
        self._hold: Hold | None = Hold(sandbox.activity) if holds else None
        self._received: list[Mapping[str, Any]] = []
        self._messages = values.MessageReader(MAX_MESSAGE_BYTES)
        self._verdict: Mapping[str, Any] | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes | Mapping[str, Any]:
        """Return the next bytes or the next message of the helper.

        Raises:
            SandlotError: The helper failed, or the sandbox ended.
        """
        while not self._received:
            try:
                event = await anext(self._call)
            except StopAsyncIteration:
                self._over = True
                self._check()
                raise
            except (SandboxEndedError, UnavailableError) as error:
                self._over = True
                raise await self._sandbox.explain(error) from None
            if isinstance(event, OutputGap):
                raise self._broken()
            if event.channel == Channel.STDOUT:
                return event.data
            self._take(event.data)
        return self._received.pop(0)

    async def result(self) -> Mapping[str, Any]:
        """Wait for the end of the helper and return its result. Bytes and messages that were not read before are dropped.

        Raises:
            SandlotError: The helper failed, or the sandbox ended.
        """
        async for _ in self:
            pass
        return self._check()

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message to the helper.

        Raises:
            SandlotError: The helper has ended.
        """
        await self.send(values.encode_message(dict(message)))

    async def send(self, data: bytes) -> None:
        """Send bytes to the helper. Waits while the helper does not read.

        Raises:
            SandlotError: The helper has ended.
        """
        try:
            await self._call.write(data)
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def feed(self, chunks: AsyncIterable[bytes]) -> Mapping[str, Any]:
        """Send a stream as the whole input of the helper, return the helper's result, and close the helper.

        If the helper ends before it has read the whole input, the rest is not sent.

        Args:
            chunks: The input. It is read as fast as the helper reads it.

        Raises:
            SandlotError: The helper failed, or the sandbox has ended. Exceptions of ``chunks`` are passed on.
        """
        feeding = asyncio.ensure_future(self._send_all(chunks))
        ending = asyncio.ensure_future(self.result())
        try:
            await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                with suppress(ConflictError):  # the helper ended between two chunks; its result has the reason
                    feeding.result()
            return await ending
        finally:
            for task in (feeding, ending):
                task.cancel()
            await asyncio.wait({feeding, ending})
            self.close()

    async def _send_all(self, chunks: AsyncIterable[bytes]) -> None:
        async for chunk in chunks:
            await self.send(chunk)
        with suppress(SandlotError):
            self._call.close_stdin()

    def close(self) -> None:
        """End the helper in the background. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._hold is not None:
            self._hold.release()
        self._sandbox.tasks.spawn(self._leave())

    async def _leave(self) -> None:
        try:
            if not self._over:
                await self._sandbox.wait_awake()  # a suspended sandbox is not resumed for this
                with suppress(SandlotError):
                    self._call.close_stdin()
                for number in (signal.SIGTERM, signal.SIGKILL):
                    with suppress(SandlotError):
                        async with self._sandbox.connection() as link:
                            await link.processes.signal(self._call.id, int(number))
                    if await self._ends_soon():
                        break
            with suppress(SandlotError):
                async with self._sandbox.connection() as link:
                    await link.processes.forget(self._call.id)
        finally:
            await self._call.aclose()

    async def _ends_soon(self) -> bool:
        try:
            async with asyncio.timeout(LEAVE_S):
                with suppress(SandlotError):
                    async for _ in self._call:
                        pass
        except TimeoutError:
            return False
        return True

    def _take(self, data: bytes) -> None:
        self._messages.feed(data)
        try:
            for message in self._messages.messages():
                if not isinstance(message, dict) or self._verdict is not None:
                    raise self._broken()
                if "result" in message or "error" in message:
                    self._verdict = message
                else:
                    self._received.append(message)
        except values.EncodingError:
            raise self._broken() from None

    def _check(self) -> Mapping[str, Any]:
        if self._verdict is None:
            raise self._broken()
        if "error" in self._verdict:
            raise _error(self._verdict)
        result = self._verdict["result"]
        if not isinstance(result, dict):
            raise self._broken()
        return result

    def _broken(self) -> SandlotError:
        return ConflictError(
            f"Sandlot's helper `{self._name}` in sandbox {self._sandbox.id} ended before it had finished.",
            hint="Retry. A process in the sandbox may have killed the helper, or the sandbox may have run out of memory.",
            fields={"sandbox": self._sandbox.id},
        )


async def start(sandbox: Sandbox, name: str, request: Mapping[str, Any], *, user: User, holds: bool = True, link: Link | None = None) -> GuestHelper:
    """Start a helper and send its request. The caller closes the helper at the end.

    Args:
        sandbox: Sandbox of the helper.
        name: Name of the helper, a constant of ``protocol/helpers.py``.
        request: First message to the helper.
        user: User that the helper runs as.
        holds: True if the sandbox must not count as idle while the helper runs.
        link: Link to the guest, for operations that run before clients may reach the sandbox. None: the sandbox's connection.

    Raises:
        SandlotError: The helper could not be started, or the sandbox has ended.
    """
    spec = ProcessSpec(argv=program_argv(name), env=_ENV, cwd="/", user=user, stdin=True, timeout_s=None)
    id_ = new_process_id()
    try:
        async with sandbox.connection() if link is None else nullcontext(link) as reached:
            helper = GuestHelper(sandbox, await reached.processes.start(spec, id=id_), name, holds=holds)
    except asyncio.CancelledError:
        sandbox.tasks.spawn(end_process(sandbox, id_))
        raise
    try:
        await helper.tell(request)
    except BaseException:
        helper.close()
        raise
    return helper


async def end_leftovers(sandbox: Sandbox) -> int:
    """End the helpers that an earlier service started, and return their number. The results of these helpers are lost.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    async with sandbox.connection() as link:
        leftovers = [info.process for info in await link.processes.list() if info.running and is_helper(info.argv)]
    for process in leftovers:
        sandbox.tasks.spawn(end_process(sandbox, process, LEAVE_S))
    return len(leftovers)


async def end_process(sandbox: Sandbox, process: ProcessId, grace_s: float = 0) -> None:
    """Kill the process group of a process. Called when the last client of the process has disconnected. Errors are ignored.

    Args:
        sandbox: Sandbox of the process. While the sandbox is hibernated, nothing is done: the hibernation closes the link, which does not mean
            that the clients have disconnected.
        process: Id of the process.
        grace_s: Seconds between SIGTERM and SIGKILL; 0 sends only SIGKILL.
    """
    if sandbox.is_hibernated:
        return
    with suppress(SandlotError):
        async with sandbox.connection(CALL_TIMEOUT_S + grace_s) as link:
            if grace_s:
                await link.processes.signal(process, int(signal.SIGTERM))
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await link.processes.wait(process)
            await link.processes.signal(process, int(signal.SIGKILL))


def _error(verdict: Mapping[str, Any]) -> SandlotError:
    """Return the error that a helper reported. The texts are limited in length, and the code is one of the codes that a guest may send."""
    code, message, hint = (verdict.get(name) for name in ("error", "message", "hint"))
    if code not in schema.RESET_CODES or not isinstance(message, str) or not isinstance(hint, str):
        _log.error("helper.internal_error", message=str(message)[:_HINT_CHARS])
        return InternalError(
            "Internal error in a helper program of Sandlot that runs in the sandbox.",
            hint="Report the lines of the service's log that contain `helper.internal_error`.",
        )
    return from_code(code, message[: schema.LIMITS["text"]], hint=hint[:_HINT_CHARS])
