"""Code that runs in a sandbox: followed to its end, however often the connection breaks, and handles of background runs.

Law: A connection that breaks under a run costs nothing that the sandbox still keeps: the run is gone on with where it was, and what was never
answered is asked again under the same Idempotency-Key, which begins nothing twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sandlot.model.errors import SandlotError
from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.commands import cut_short, tell, tell_rest
from sandlot.sdk._async.transport import AsyncTransport, wait_before_resuming
from sandlot.sdk.converter import structure
from sandlot.sdk.models.code import CodeEvent, ExceptionInfo, Execution, Result
from sandlot.sdk.models.processes import Output
from sandlot.sdk.transcript import Piece, Transcript

INTERRUPT_TIMEOUT_S = 10.0
"""How long an interrupt may take of a caller that is leaving."""


async def run(
    transport: AsyncTransport, path: str, body: dict[str, Any], transcript: Transcript, headers: Mapping[str, str]
) -> AsyncGenerator[Piece]:
    """Run a cell in the foreground and give what it tells; whoever stops taking it interrupts the cell.

    Args:
        transport: Connections to the service.
        path: Of the sandbox's code.
        body: The request.
        transcript: Takes it all in.
        headers: With the request's Idempotency-Key.
    """
    tries = 0
    async with _interrupting(transport, path, body, transcript, headers):
        while not transcript.id:
            tries += 1
            try:
                async with transport.event_stream("POST", path, body=body, headers=headers) as events:
                    async for event in events:
                        piece = transcript.feed(event)
                        if piece is not None:
                            yield piece
                if transcript.over():
                    return
                error: SandlotError = cut_short("code")
            except SandlotError as caught:
                error = caught
            await wait_before_resuming(error, tries)
        async with aclosing(follow(transport, path, transcript)) as pieces:
            async for piece in pieces:
                yield piece


async def answered(transport: AsyncTransport, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Execution:
    """Run a cell in the foreground and wait for its answer; whoever stops waiting interrupts the cell.

    Args:
        transport: Connections to the service.
        path: Of the sandbox's code.
        body: The request.
        headers: With the request's Idempotency-Key.
    """
    async with _interrupting(transport, path, body, Transcript(), headers):
        return structure(Execution, await transport.request("POST", path, body=body, headers=headers, idempotent=True, read_timeout_s=None))


@asynccontextmanager
async def _interrupting(
    transport: AsyncTransport, path: str, body: dict[str, Any], transcript: Transcript, headers: Mapping[str, str]
) -> AsyncGenerator[None]:
    """Interrupt the cell if the body is left before the end of the cell.

    An interrupt of this process may strike between two steps of httpx, which then leaves the connection open. The id of the cell may still be
    unknown at that moment.
    """
    is_left_without_id = False
    try:
        yield
    except Exception:
        raise
    except BaseException:
        is_left_without_id = not transcript.id
        raise
    finally:
        with backend.shielded(), suppress(SandlotError):
            if is_left_without_id:
                await _leave(transport, path, body, headers)
            elif transcript.id and not transcript.over():
                # Without this request, the service would wait some seconds for the client to come back.
                await interrupt(transport, f"{path}/{requests.path_segment(transcript.id)}")


async def _leave(transport: AsyncTransport, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Interrupt a cell whose id nobody has told yet: asked for again as events, its id comes first."""
    transcript = Transcript()
    async with transport.event_stream("POST", path, body=body, headers=headers) as events:
        async for event in events:
            transcript.feed(event)
            if transcript.id:
                break
        if transcript.id and not transcript.over():
            await interrupt(transport, f"{path}/{requests.path_segment(transcript.id)}")


async def follow(transport: AsyncTransport, path: str, transcript: Transcript) -> AsyncGenerator[Piece]:
    """What a cell tells from where a transcript stands to its end; where the connection breaks, it is gone on with.

    Args:
        transport: Connections to the service.
        path: Of the sandbox's code.
        transcript: Takes it all in.
    """
    tries = 0
    while not transcript.over():
        tries += 1
        params = {"events_from": transcript.events, "stdout_from": transcript.stdout.offset, "stderr_from": transcript.stderr.offset}
        try:
            async with transport.event_stream("GET", f"{path}/{requests.path_segment(transcript.id)}", params=params) as events:
                async for event in events:
                    piece = transcript.feed(event)
                    if piece is not None:
                        tries = 0
                        yield piece
            if transcript.over():
                return
            error: SandlotError = cut_short("code")
        except SandlotError as caught:
            error = caught
        await wait_before_resuming(error, max(1, tries))


async def interrupt(transport: AsyncTransport, path: str) -> bool:
    """Interrupt an execution, or what runs in a context; whether there was something to interrupt."""
    answer = await transport.request("POST", f"{path}/interrupt", read_timeout_s=INTERRUPT_TIMEOUT_S)
    return bool(answer.get("running", False))


def finished_execution(transcript: Transcript) -> Execution:
    """What came of a cell whose events have ended.

    Raises:
        UnavailableError: They ended without an end of it.
    """
    execution = transcript.execution()
    if execution is None:
        raise cut_short("code")
    return execution


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who is told of what comes of a cell."""

    on_stdout: backend.Callback[str] | None = None
    on_stderr: backend.Callback[str] | None = None
    on_result: backend.Callback[Result] | None = None
    on_error: backend.Callback[ExceptionInfo] | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.on_stdout, self.on_stderr, self.on_result, self.on_error))

    def over(self, other: Callbacks) -> Callbacks:
        """These, and the other's where there is none."""
        return Callbacks(
            on_stdout=self.on_stdout or other.on_stdout,
            on_stderr=self.on_stderr or other.on_stderr,
            on_result=self.on_result or other.on_result,
            on_error=self.on_error or other.on_error,
        )

    async def tell(self, transcript: Transcript, piece: Piece) -> None:
        """Tell whom it concerns."""
        if isinstance(piece, Output):
            await tell(transcript, piece, self.on_stdout, self.on_stderr)
        elif isinstance(piece, Result):
            await backend.call(self.on_result, piece)
        elif isinstance(piece, ExceptionInfo):
            await backend.call(self.on_error, piece)


class AsyncCodeHandle:
    """A cell that runs by itself. It lives on when the handle is dropped; ``sandbox.attach_code(id)`` gives another one.

    Iterate it for what it tells, from where the handle stands to its end, and the :class:`Execution` as the last; each piece is read once.
    """

    def __init__(self, transport: AsyncTransport, path: str, transcript: Transcript, callbacks: Callbacks) -> None:
        self._transport = transport
        self._path = path
        self._transcript = transcript
        self._callbacks = callbacks

    @property
    def id(self) -> str:
        """The execution's id."""
        return self._transcript.id

    @property
    def stdout(self) -> str:
        """What this handle has read of its standard output so far."""
        return self._transcript.stdout.text()

    @property
    def stderr(self) -> str:
        """What this handle has read of its standard error so far."""
        return self._transcript.stderr.text()

    @property
    def results(self) -> tuple[Result, ...]:
        """The results that this handle has read so far."""
        return tuple(self._transcript.results)

    @property
    def result(self) -> Execution | None:
        """What came of it, once :meth:`wait` or an iteration has seen the end."""
        return self._transcript.execution()

    def __aiter__(self) -> AsyncGenerator[CodeEvent]:
        return self._events()

    async def wait(
        self,
        *,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> Execution:
        """Wait for its end, as often as the connection breaks meanwhile.

        Args:
            on_stdout: Called with each piece of text of its standard output; by default what was given at the start.
            on_stderr: The same for standard error.
            on_result: The same for results.
            on_error: The same for the exception that ended it.

        Returns:
            What came of it, with what this handle has read.

        Raises:
            SandboxEndedError: The sandbox ended first.
            NotFoundError: ``execution_not_found``: the sandbox remembers it no more.
        """
        told = Callbacks(on_stdout, on_stderr, on_result, on_error).over(self._callbacks)
        async with aclosing(follow(self._transport, self._path, self._transcript)) as pieces:
            async for piece in pieces:
                await told.tell(self._transcript, piece)
        await tell_rest(self._transcript, told.on_stdout, told.on_stderr)
        return finished_execution(self._transcript)

    async def poll(self) -> Execution:
        """All that there is of it now, also what this handle has read; its status is ``running`` until it is done."""
        return structure(Execution, await self._transport.request("GET", f"{self._path}/{requests.path_segment(self.id)}"))

    async def interrupt(self) -> bool:
        """Interrupt it, as Ctrl-C would, or take it back where it waits for its turn; False when it has ended."""
        return await interrupt(self._transport, f"{self._path}/{requests.path_segment(self.id)}")

    async def _events(self) -> AsyncGenerator[CodeEvent]:
        if self._transcript.over():
            return
        async with aclosing(follow(self._transport, self._path, self._transcript)) as pieces:
            async for piece in pieces:
                yield piece
        yield finished_execution(self._transcript)
