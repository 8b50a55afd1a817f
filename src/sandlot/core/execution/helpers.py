"""Programs of ours that are run inside a sandbox for what needs a walk, an archive or a watch there (``guest/programs/``).

They run on the guest's own interpreter, whatever the image has, as ordinary processes of the user that was asked for: they may do what
that user may, and count as the sandbox's own memory, time and processes.

Laws:
- They are nobody's runs: not listed, not logged, forgotten by the guest once they are over.
- Whoever lets go of one ends it: its input ends and it gets SIGTERM, so that it cleans up, then SIGKILL; in a sandbox that rests, once it does not.
- What one says is a guest's word: bounded, checked, and its error's code one of those that a guest may give.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import structlog

from sandlot.core.sandbox import Hold, Sandbox
from sandlot.link.client import ProcessCall
from sandlot.link.payload import program_argv
from sandlot.link.types import Lost
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, SandboxEndedError, SandlotError, UnavailableError, from_code
from sandlot.model.ids import ProcessId, new_process_id
from sandlot.model.specs import ProcessSpec, User
from sandlot.protocol import schema, values

MESSAGE_BYTES = 1024 * 1024
"""One message of a program; a longer one is none."""
LEAVE_S = 2.0
"""How long one that is let go of may clean up behind itself."""

_ENV: Mapping[str, str] = {"LD_PRELOAD": "", "LD_AUDIT": "", "LD_DEBUG": "", "MALLOC_PERTURB_": ""}
"""What the sandbox's own environment may say to a dynamic loader (ld.so(8)) is not meant for these."""
_HINT_CHARS = 1000
_MARK = "\0"
_PREFIX = program_argv(_MARK)
_START = _PREFIX[-1].partition(_MARK)[0]

_log = structlog.get_logger("sandlot.core")


def is_program(argv: Sequence[str]) -> bool:
    """Whether that is the command of one of these. Pure.

    Args:
        argv: As a guest lists it.
    """
    return len(argv) == len(_PREFIX) and tuple(argv[:-1]) == _PREFIX[:-1] and argv[-1].startswith(_START)


class GuestHelper:
    """One program that runs. Iterate it: bytes that it gives, and messages; its error is raised, its result is kept.

    Args:
        sandbox: Where it runs.
        call: The link's end of it.
        name: What it is.
        holds: Whether its sandbox is not idle while it runs.
    """

    __slots__ = ("_call", "_closed", "_hold", "_messages", "_name", "_over", "_sandbox", "_told", "_verdict")

    def __init__(self, sandbox: Sandbox, call: ProcessCall, name: str, *, holds: bool = True) -> None:
        self._sandbox = sandbox
        self._closed = False
        self._call = aiter(call)
        self._name = name
        self._hold: Hold | None = sandbox.hold() if holds else None
        self._told: list[Mapping[str, Any]] = []
        self._messages = values.MessageReader(MESSAGE_BYTES)
        self._verdict: Mapping[str, Any] | None = None
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes | Mapping[str, Any]:
        """What comes next.

        Raises:
            SandlotError: Its error, or the sandbox's end.
        """
        while not self._told:
            try:
                event = await anext(self._call)
            except StopAsyncIteration:
                self._over = True
                self._check()
                raise
            except (SandboxEndedError, UnavailableError) as error:
                self._over = True
                raise await self._sandbox.explain(error) from None
            if isinstance(event, Lost):
                raise self._broken()
            if event.channel == schema.STDOUT:
                return event.data
            self._take(event.data)
        return self._told.pop(0)

    async def result(self) -> Mapping[str, Any]:
        """What it gives in the end; what it tells until then is dropped.

        Raises:
            SandlotError: Its error, or the sandbox's end.
        """
        async for _ in self:
            pass
        return self._check()

    async def tell(self, message: Mapping[str, Any]) -> None:
        """Send it a message.

        Raises:
            SandlotError: It has ended.
        """
        await self.send(values.encode_message(dict(message)))

    async def send(self, data: bytes) -> None:
        """Send it bytes, as fast as it takes them.

        Raises:
            SandlotError: It has ended.
        """
        try:
            await self._call.write(data)
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    def end_input(self) -> None:
        """It gets no more."""
        self._call.close_stdin()

    async def feed(self, chunks: AsyncIterable[bytes]) -> Mapping[str, Any]:
        """Send a stream as the program's whole input, return the program's result, and close the program.

        The program may end before it has read everything. Its own error or result counts then, and the rest is not sent.

        Args:
            chunks: The input, read as fast as the program reads it.

        Raises:
            SandlotError: The program's error, or the sandbox has ended. Exceptions of ``chunks`` are passed on.
        """
        feeding = asyncio.ensure_future(self._send_all(chunks))
        ending = asyncio.ensure_future(self.result())
        try:
            await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                with suppress(ConflictError):  # the program ended between two chunks; its result says why
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
            self.end_input()

    def close(self) -> None:
        """Let go of it; it ends beside everything else. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._hold is not None:
            self._hold.release()
        self._sandbox.spawn(self._leave())

    async def _leave(self) -> None:
        try:
            if not self._over:
                await self._sandbox.wait_awake()  # one that rests is not resumed for this
                with suppress(SandlotError):
                    self.end_input()
                for number in (signal.SIGTERM, signal.SIGKILL):
                    with suppress(SandlotError):
                        async with self._sandbox.connection() as link:
                            await link.signal(self._call.id, int(number))
                    if await self._ends():
                        break
            with suppress(SandlotError):
                async with self._sandbox.connection() as link:
                    await link.forget(self._call.id)
        finally:
            await self._call.aclose()

    async def _ends(self) -> bool:
        """Whether it ends soon."""
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
                    self._told.append(message)
        except values.BadValue:
            raise self._broken() from None

    def _check(self) -> Mapping[str, Any]:
        """Its result, where it has ended well."""
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
            f"What Sandlot runs inside for this ({self._name}) ended before it was done.",
            code=ErrorCode.CONFLICT,
            hint="Something in the sandbox ended it, or it ran short of memory. Try again.",
            fields={"sandbox": self._sandbox.id},
        )


async def start(sandbox: Sandbox, name: str, request: Mapping[str, Any], *, user: User, holds: bool = True) -> GuestHelper:
    """Start a program and tell it what is wanted. Close it in the end.

    Args:
        sandbox: Where.
        name: A module of ``guest/programs/``.
        request: What it takes.
        user: Who it runs as.
        holds: Whether the sandbox is not idle while it runs.

    Raises:
        SandlotError: It could not be started, or the sandbox has ended.
    """
    spec = ProcessSpec(argv=program_argv(name), env=_ENV, cwd="/", user=user, stdin=True, timeout_s=None)
    id_ = new_process_id()
    try:
        async with sandbox.connection() as link:
            helper = GuestHelper(sandbox, await link.start(spec, id=id_), name, holds=holds)
    except asyncio.CancelledError:
        sandbox.spawn(_kill(sandbox, id_))
        raise
    try:
        await helper.tell(request)
    except BaseException:
        helper.close()
        raise
    return helper


async def end_leftovers(sandbox: Sandbox) -> int:
    """End what a service that is gone had started; how many. Nobody can take their results any more.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    async with sandbox.connection() as link:
        left = [info.process for info in await link.processes() if info.running and is_program(info.argv)]
        for process in left:
            await link.signal(process, int(signal.SIGTERM))
    for process in left:
        sandbox.spawn(_kill(sandbox, process, LEAVE_S))
    return len(left)


async def _kill(sandbox: Sandbox, process: ProcessId, after_s: float = 0.0) -> None:
    await asyncio.sleep(after_s)
    with suppress(SandlotError):
        async with sandbox.connection() as link:
            await link.signal(process, int(signal.SIGKILL))


def _error(verdict: Mapping[str, Any]) -> SandlotError:
    """The error that a program told; a guest's words are bounded, and so is what they may be."""
    code, message, hint = (verdict.get(name) for name in ("error", "message", "hint"))
    if code not in schema.RESET_CODES or not isinstance(message, str) or not isinstance(hint, str):
        _log.error("program.defect", said=str(message)[:_HINT_CHARS])
        return InternalError("What Sandlot runs inside for this failed.", hint="The service's log says how. Please report it.")
    return from_code(code, message[: schema.LIMITS["text"]], hint=hint[:_HINT_CHARS])
