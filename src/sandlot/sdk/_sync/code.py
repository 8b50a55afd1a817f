# Generated from src/sandlot/sdk/_async/code.py by scripts/unasync.py; change that file.
"""Runs of code: streamed, awaited as one response, followed again after a broken connection, and handles of background runs.

Invariants:
- A foreground run is interrupted when its caller is cancelled or stops iterating. The context and its variables stay.
- A broken connection loses nothing that the sandbox still keeps: a run whose id is known is followed from where the stream broke, and a request
  that was not answered is repeated with the same Idempotency-Key, which does not start the code twice.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sandlot.model.errors import SandlotError
from sandlot.sdk import requests
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.commands import deliver_output, deliver_remainders, stream_cut_error
from sandlot.sdk._sync.transport import Transport, wait_before_resuming
from sandlot.sdk.converter import structure
from sandlot.sdk.models.code import CodeEvent, ExceptionInfo, Execution, Result
from sandlot.sdk.models.processes import Output, PrintedUrl
from sandlot.sdk.transcript import Piece, Transcript

INTERRUPT_TIMEOUT_S = 10.0
"""Seconds that the interrupt of a caller that leaves may take."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Callbacks of a run."""

    on_stdout: backend.Callback[str] | None = None
    on_stderr: backend.Callback[str] | None = None
    on_result: backend.Callback[Result] | None = None
    on_error: backend.Callback[ExceptionInfo] | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.on_stdout, self.on_stderr, self.on_result, self.on_error))

    def or_else(self, other: Callbacks) -> Callbacks:
        """Return these callbacks, completed by those of another object."""
        return Callbacks(
            on_stdout=self.on_stdout or other.on_stdout,
            on_stderr=self.on_stderr or other.on_stderr,
            on_result=self.on_result or other.on_result,
            on_error=self.on_error or other.on_error,
        )

    def deliver(self, transcript: Transcript, piece: Piece) -> None:
        """Call the callback for a piece of the run."""
        if isinstance(piece, Output):
            deliver_output(transcript, piece, self.on_stdout, self.on_stderr)
        elif isinstance(piece, Result):
            backend.call(self.on_result, piece)
        elif isinstance(piece, ExceptionInfo):
            backend.call(self.on_error, piece)


class CodeHandle:
    """A background run of code. The run continues when the handle is dropped; ``sandbox.connect_code(id)`` returns another handle.

    Iterating yields the events of the run from the position of the handle, and the :class:`Execution` at the end. Each event is read once.
    """

    def __init__(self, transport: Transport, path: str, transcript: Transcript, callbacks: Callbacks) -> None:
        self._transport = transport
        self._path = path
        self._transcript = transcript
        self._callbacks = callbacks
        self._polled: Execution | None = None
        """Outcome that :meth:`poll` has read."""

    @property
    def id(self) -> str:
        """Id of the execution."""
        return self._transcript.id

    @property
    def stdout(self) -> str:
        """Standard output that this handle has read so far."""
        return self._transcript.stdout.text()

    @property
    def stderr(self) -> str:
        """Standard error that this handle has read so far."""
        return self._transcript.stderr.text()

    @property
    def results(self) -> tuple[Result, ...]:
        """Rich results that this handle has read so far."""
        return tuple(self._transcript.results)

    @property
    def urls(self) -> tuple[PrintedUrl, ...]:
        """Previews of the loopback URLs in the output that this handle has read so far."""
        return tuple(self._transcript.urls)

    @property
    def result(self) -> Execution | None:
        """Outcome of the run, once :meth:`wait`, :meth:`poll` or an iteration has read the end; None before."""
        return self._transcript.execution() or self._polled

    def __iter__(self) -> Generator[CodeEvent]:
        return self._events()

    def wait(
        self,
        *,
        check: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExceptionInfo] | None = None,
    ) -> Execution:
        """Wait for the end of the run; a broken connection is opened again.

        Args:
            check: Raise ``ExecutionFailedError`` if the code failed.
            on_stdout: Called with each piece of standard output. Default: the callback given at the start.
            on_stderr: The same for standard error.
            on_result: The same for rich results.
            on_error: The same for the exception that ended the code.

        Returns:
            The outcome, with the output that this handle has read.

        Raises:
            ExecutionFailedError: ``check`` is True and the code failed.
            NotFoundError: ``execution_not_found``: the sandbox no longer keeps the run.
            SandboxEndedError: The sandbox has ended.
        """
        callbacks = Callbacks(on_stdout, on_stderr, on_result, on_error).or_else(self._callbacks)
        with closing(follow(self._transport, self._path, self._transcript)) as pieces:
            for piece in pieces:
                callbacks.deliver(self._transcript, piece)
        deliver_remainders(self._transcript, callbacks.on_stdout, callbacks.on_stderr)
        execution = finished_execution(self._transcript)
        return execution.check() if check else execution

    def poll(self) -> Execution | None:
        """Return the outcome if the run has ended, else None; :meth:`state` has the output so far."""
        if self.result is None:
            state = self.state()
            self._polled = None if state.status == "running" else state
        return self.result

    def state(self) -> Execution:
        """Get the run as it is now, with all output that the sandbox keeps; ``status`` is ``running`` before the end.

        Raises:
            NotFoundError: ``execution_not_found``: the sandbox no longer keeps the run.
        """
        return structure(Execution, self._transport.request("GET", f"{self._path}/{requests.path_segment(self.id)}"))

    def interrupt(self) -> bool:
        """Interrupt the code as Ctrl-C does, or cancel it if it waits for its turn. Returns False if the run has ended."""
        return interrupt(self._transport, f"{self._path}/{requests.path_segment(self.id)}")

    def _events(self) -> Generator[CodeEvent]:
        if self._transcript.over():
            return
        with closing(follow(self._transport, self._path, self._transcript)) as pieces:
            for piece in pieces:
                yield piece
        yield finished_execution(self._transcript)


def run_streamed(transport: Transport, path: str, body: dict[str, Any], transcript: Transcript, headers: Mapping[str, str]) -> Generator[Piece]:
    """Run code in the foreground and yield its pieces as they arrive. Closing the generator interrupts the code.

    Args:
        transport: Connections to the service.
        path: Path of the sandbox's runs of code.
        body: Body of the request.
        transcript: Receives all events.
        headers: Headers with the Idempotency-Key.
    """
    tries = 0
    with stopping(transport, path, body, transcript, headers, _interrupter(transport, path)):
        while not transcript.id:
            tries += 1
            try:
                with transport.event_stream("POST", path, body=body, headers=headers) as events:
                    for event in events:
                        piece = transcript.feed(event)
                        if piece is not None:
                            yield piece
                if transcript.over():
                    return
                error: SandlotError = stream_cut_error("code")
            except SandlotError as caught:
                error = caught
            wait_before_resuming(error, tries)
        with closing(follow(transport, path, transcript)) as pieces:
            for piece in pieces:
                yield piece


def run_to_response(transport: Transport, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> Execution:
    """Run code in the foreground and wait for one response with its outcome. Arguments as for :func:`run_streamed`."""
    with stopping(transport, path, body, Transcript(), headers, _interrupter(transport, path)):
        response = transport.request("POST", path, body=body, headers=headers, idempotent=True, read_timeout_s=None)
        return structure(Execution, response)


def _interrupter(transport: Transport, path: str) -> backend.Callback[str]:
    return lambda id_: interrupt(transport, f"{path}/{requests.path_segment(id_)}")


@contextmanager
def stopping(
    transport: Transport,
    path: str,
    body: dict[str, Any],
    transcript: Transcript,
    headers: Mapping[str, str],
    stop: backend.Callback[str],
) -> Generator[None]:
    """Stop a foreground run if the body is left before the run ends. Otherwise, the service would wait some seconds for the client to come back.

    KeyboardInterrupt may strike between two steps of httpx, which then leaves the connection open, so the service does not notice that the caller is
    gone. The id of the run may still be unknown at that moment.

    Args:
        transport: Connections to the service.
        path: Path of the request that starts the run.
        body: Body of this request.
        transcript: Receives the events of the run.
        headers: Headers with the Idempotency-Key.
        stop: Stops the run with an id.
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
                _stop_without_id(transport, path, body, headers, stop)
            elif transcript.id and not transcript.over():
                backend.call(stop, transcript.id)


def _stop_without_id(transport: Transport, path: str, body: dict[str, Any], headers: Mapping[str, str], stop: backend.Callback[str]) -> None:
    """Repeat the request with the same Idempotency-Key as an event stream, whose first event has the id of the run, and stop the run."""
    transcript = Transcript()
    with transport.event_stream("POST", path, body=body, headers=headers) as events:
        for event in events:
            transcript.feed(event)
            if transcript.id:
                break
        if transcript.id and not transcript.over():
            backend.call(stop, transcript.id)


def follow(transport: Transport, path: str, transcript: Transcript) -> Generator[Piece]:
    """Yield the pieces of a run from the position of a transcript to the end; a broken stream is continued.

    Args:
        transport: Connections to the service.
        path: Path of the sandbox's runs of code.
        transcript: Receives all events.
    """
    tries = 0
    while not transcript.over():
        tries += 1
        params = {"events_from": transcript.events, "stdout_from": transcript.stdout.offset, "stderr_from": transcript.stderr.offset}
        try:
            with transport.event_stream("GET", f"{path}/{requests.path_segment(transcript.id)}", params=params) as events:
                for event in events:
                    piece = transcript.feed(event)
                    if piece is not None:
                        tries = 0
                        yield piece
            if transcript.over():
                return
            error: SandlotError = stream_cut_error("code")
        except SandlotError as caught:
            error = caught
        wait_before_resuming(error, max(1, tries))


def interrupt(transport: Transport, path: str) -> bool:
    """Interrupt a run, or the code that runs in a context. Returns False if nothing ran."""
    response = transport.request("POST", f"{path}/interrupt", read_timeout_s=INTERRUPT_TIMEOUT_S)
    return bool(response.get("running", False))


def finished_execution(transcript: Transcript) -> Execution:
    """Return the outcome of a run whose event stream has ended.

    Raises:
        UnavailableError: The stream ended without an outcome.
    """
    execution = transcript.execution()
    if execution is None:
        raise stream_cut_error("code")
    return execution
