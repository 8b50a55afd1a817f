# Made from src/sandlot/sdk/_async/code/handle.py by scripts/unasync.py; change that file, not this one.
"""A cell that runs by itself, and how what it tells reaches callbacks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from sandlot.sdk import wire
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code.following import ended, follow, interrupt
from sandlot.sdk._sync.handle import tell, tell_rest
from sandlot.sdk.cells.events import CodeEvent
from sandlot.sdk.results import Execution, ExecutionError, Output, Result
from sandlot.sdk.transcript import Piece, Transcript


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Who is told of what comes of a cell."""

    on_stdout: backend.Callback[str] | None = None
    on_stderr: backend.Callback[str] | None = None
    on_result: backend.Callback[Result] | None = None
    on_error: backend.Callback[ExecutionError] | None = None

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

    def tell(self, transcript: Transcript, piece: Piece) -> None:
        """Tell whom it concerns."""
        if isinstance(piece, Output):
            tell(transcript, piece, self.on_stdout, self.on_stderr)
        elif isinstance(piece, Result):
            backend.call(self.on_result, piece)
        elif isinstance(piece, ExecutionError):
            backend.call(self.on_error, piece)


class CodeHandle:
    """A cell that runs by itself. It lives on when the handle is dropped; ``sandbox.attach_code(id)`` gives another one.

    Iterate it for what it tells, from where the handle stands to its end, and the :class:`Execution` as the last; each piece is read once.
    """

    def __init__(self, client: Client, path: str, transcript: Transcript, callbacks: Callbacks) -> None:
        self._client = client
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

    def __iter__(self) -> Generator[CodeEvent]:
        return self._events()

    def wait(
        self,
        *,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExecutionError] | None = None,
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
        with closing(follow(self._client, self._path, self._transcript)) as pieces:
            for piece in pieces:
                told.tell(self._transcript, piece)
        tell_rest(self._transcript, told.on_stdout, told.on_stderr)
        return ended(self._transcript)

    def poll(self) -> Execution:
        """All that there is of it now, also what this handle has read; its status is ``running`` until it is done."""
        return Execution.parse(self._client.request("GET", f"{self._path}/{wire.segment(self.id)}"))

    def interrupt(self) -> bool:
        """Interrupt it, as Ctrl-C would, or take it back where it waits for its turn; False when it has ended."""
        return interrupt(self._client, f"{self._path}/{wire.segment(self.id)}")

    def _events(self) -> Generator[CodeEvent]:
        if self._transcript.over():
            return
        with closing(follow(self._client, self._path, self._transcript)) as pieces:
            for piece in pieces:
                yield piece
        yield ended(self._transcript)
