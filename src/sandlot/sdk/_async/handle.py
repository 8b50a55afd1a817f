"""A command that runs by itself, and how output reaches callbacks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, UnavailableError
from sandlot.sdk import wire
from sandlot.sdk._async import backend
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk.results import CommandResult, Output
from sandlot.sdk.transcript import Transcript


class AsyncCommandHandle:
    """A command in the background. It lives on when the handle is dropped; ``commands.connect(id)`` gives another one.

    Iterating yields its output as it arrives, from where this handle stands, until the command ends.
    """

    def __init__(
        self,
        client: AsyncClient,
        path: str,
        transcript: Transcript,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
    ) -> None:
        self._client = client
        self._path = path
        self._transcript = transcript
        self._on_stdout = on_stdout
        self._on_stderr = on_stderr

    @property
    def id(self) -> str:
        """The process's id."""
        return self._transcript.id

    @property
    def pid(self) -> int | None:
        """Its process id inside the sandbox."""
        return self._transcript.pid

    @property
    def stdout(self) -> str:
        """What this handle has read of its standard output so far."""
        return self._transcript.stdout.text()

    @property
    def stderr(self) -> str:
        """What this handle has read of its standard error so far."""
        return self._transcript.stderr.text()

    @property
    def stdout_offset(self) -> int:
        """Where this handle stands in its standard output: what ``commands.connect(id, stdout_from=...)`` goes on from."""
        return self._transcript.stdout.offset

    @property
    def stderr_offset(self) -> int:
        """The same of its standard error."""
        return self._transcript.stderr.offset

    @property
    def result(self) -> CommandResult | None:
        """The result, once :meth:`wait`, :meth:`poll` or an iteration has seen the end."""
        return self._transcript.command_result()

    def __aiter__(self) -> AsyncGenerator[Output]:
        return self._output(follow=True)

    def output(self, *, follow: bool = True) -> AsyncGenerator[Output]:
        """Its output from where this handle stands, piece by piece.

        Args:
            follow: Until the command ends; otherwise only what there is by now.
        """
        return self._output(follow=follow)

    async def wait(self, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None) -> CommandResult:
        """Wait for its end.

        Args:
            on_stdout: Called with each piece of text of its standard output; by default what was given at the start.
            on_stderr: The same for standard error.

        Returns:
            Its result, with the output that this handle has read.

        Raises:
            SandboxEndedError: The sandbox ended first.
        """
        await self._tell(follow=True, on_stdout=on_stdout, on_stderr=on_stderr)
        return ended(self._transcript)

    async def poll(self) -> CommandResult | None:
        """Read what there is now, without waiting for more; the result, if it has ended."""
        await self._tell(follow=False)
        return self.result

    async def kill(self, signal: str | int = "SIGKILL") -> bool:
        """Send a signal to its whole process group; False when it is gone."""
        return await send_signal(self._client, self._path, signal)

    async def send_stdin(self, data: str | bytes, *, offset: int | None = None) -> int:
        """Write to its standard input, which it must have been started with (``stdin=True``); returns once the sandbox has taken it.

        Args:
            data: What to write.
            offset: Where in the whole input that begins. With it the same can be sent again, for example after the connection broke: what has
                come there before is not written twice.

        Returns:
            How many bytes have come for its input so far: the offset of the next write.

        Raises:
            ConflictError: It takes no input (any more), or something before ``offset`` is missing.
        """
        return await write_stdin(self._client, self._path, data, offset)

    async def close_stdin(self) -> None:
        """End its standard input."""
        await self._client.request("DELETE", f"{self._path}/stdin")

    async def _output(self, *, follow: bool) -> AsyncGenerator[Output]:
        transcript = self._transcript
        if transcript.end is not None:
            return
        rested = True
        while rested:
            rested = False
            params = {"stdout_from": transcript.stdout.offset, "stderr_from": transcript.stderr.offset, "follow": "true" if follow else "false"}
            try:
                async with self._client.event_stream("GET", f"{self._path}/output", params=params) as events:
                    async for event in events:
                        piece = transcript.take(event)
                        if isinstance(piece, Output):
                            yield piece
            except ConflictError as error:
                if not wire.came_to_rest(error):
                    raise
                rested = True

    async def _tell(self, *, follow: bool, on_stdout: backend.Callback[str] | None = None, on_stderr: backend.Callback[str] | None = None) -> None:
        on_stdout, on_stderr = on_stdout or self._on_stdout, on_stderr or self._on_stderr
        async with aclosing(self._output(follow=follow)) as pieces:
            async for piece in pieces:
                await tell(self._transcript, piece, on_stdout, on_stderr)
        if self._transcript.end is not None:
            await tell_rest(self._transcript, on_stdout, on_stderr)


async def tell(transcript: Transcript, piece: Output, on_stdout: backend.Callback[str] | None, on_stderr: backend.Callback[str] | None) -> None:
    """Give a callback the whole characters of a piece."""
    if text := transcript.stream(piece.stream).decode(piece.data):
        await backend.call(on_stdout if piece.stream == "stdout" else on_stderr, text)


async def tell_rest(transcript: Transcript, on_stdout: backend.Callback[str] | None, on_stderr: backend.Callback[str] | None) -> None:
    """Give the callbacks what never became a whole character."""
    for stream, text in transcript.remainders():
        await backend.call(on_stdout if stream == "stdout" else on_stderr, text)


def ended(transcript: Transcript) -> CommandResult:
    """The result of a command whose events have ended.

    Raises:
        UnavailableError: They ended without one.
    """
    result = transcript.command_result()
    if result is None:
        raise cut_short("command")
    return result


def cut_short(what: str) -> UnavailableError:
    """The error for a stream of events that ended before its last event."""
    return UnavailableError(
        f"The service ended the stream before the {what} did.",
        code=ErrorCode.SERVICE_UNAVAILABLE,
        hint="Whether it still runs is not known; `commands.list()` tells.",
    )


async def send_signal(client: AsyncClient, path: str, signal: str | int) -> bool:
    """Signal a process; False when it is gone."""
    try:
        answer = await client.request("POST", f"{path}/signal", body={"signal": signal})
    except NotFoundError as error:
        if error.code is not ErrorCode.PROCESS_NOT_FOUND:
            raise
        return False
    return bool(answer.get("running", True))


async def write_stdin(client: AsyncClient, path: str, data: str | bytes, offset: int | None = None) -> int:
    """Write to a process's standard input; it may take as long as the process takes to read."""
    content = wire.utf8(data) if isinstance(data, str) else data
    answer = await client.request("POST", f"{path}/stdin", params=wire.given(offset=offset), content=content, read_timeout_s=None)
    return int(answer.get("stdin_bytes", 0))
