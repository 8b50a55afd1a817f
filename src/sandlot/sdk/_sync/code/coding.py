# Made from src/sandlot/sdk/_async/code/coding.py by scripts/unasync.py; change that file, not this one.
"""Code in a sandbox: run, streamed, left running, gone back to.

Law: A run in the foreground ends with its caller: one that is cancelled, interrupted or stops iterating interrupts its cell, and no other. The
context and its variables stay.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any, Literal, overload

from sandlot.model.specs import DEFAULT_COMMAND_TIMEOUT_S
from sandlot.sdk import wire
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.code.contexts import Contexts
from sandlot.sdk._sync.code.following import answered, ended, run
from sandlot.sdk._sync.code.handle import Callbacks, CodeHandle
from sandlot.sdk._sync.code.telling import Telling
from sandlot.sdk._sync.handle import tell_rest
from sandlot.sdk.cells.contexts import Context, id_of
from sandlot.sdk.cells.events import CodeEvent
from sandlot.sdk.results import Execution, ExecutionError, Result
from sandlot.sdk.transcript import Transcript


class Coding(Telling):
    """What a sandbox does with code."""

    def __init__(self, client: Client, sandbox: str) -> None:
        super().__init__(client, sandbox)
        self._code = f"{self._path}/code"
        self.contexts = Contexts(client, f"{self._path}/contexts")
        """Contexts: :class:`Contexts`."""

    @overload
    def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        background: Literal[False] = False,
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExecutionError] | None = None,
    ) -> Execution: ...

    @overload
    def run_code(
        self,
        code: str,
        language: str | None = None,
        *,
        background: Literal[True],
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExecutionError] | None = None,
    ) -> CodeHandle: ...

    def run_code(  # noqa: PLR0913 - all by name, and each the field's
        self,
        code: str,
        language: str | None = None,
        *,
        background: bool = False,
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
        on_stdout: backend.Callback[str] | None = None,
        on_stderr: backend.Callback[str] | None = None,
        on_result: backend.Callback[Result] | None = None,
        on_error: backend.Callback[ExecutionError] | None = None,
    ) -> Execution | CodeHandle:
        """Run code in a context, where variables, imports and functions of the calls before are still there.

        Code that raises is a result like any other: look at ``error``. Cells of one context run one after another.

        Args:
            code: The code, 4 MiB at most.
            language: ``python``, ``bash`` or ``javascript``; by default the context's, or ``python``.
            background: Return at once with a handle instead of waiting for the end.
            context: Where, of ``sandbox.contexts``; by default the one of the language that is there always.
            timeout: Seconds from when its turn came until it is interrupted, 60 by default; None sets no limit but the sandbox's.
            envs: Environment variables for this run.
            silent: It leaves no trace: no execution count, no history, no value of its last expression.
            store_history: Whether it takes a place in the context's history and raises its execution count.
            stop_on_error: Where it fails, the cells that wait behind it never run.
            on_stdout: Called with each piece of text of standard output as it arrives; in the background by :meth:`CodeHandle.wait`.
            on_stderr: The same for standard error.
            on_result: Called with each rich result as it arrives.
            on_error: Called with the exception that ended the code.

        Returns:
            What came of it; in the background, a handle.

        Raises:
            SandboxEndedError: The sandbox ended, now or before.
            NotFoundError: ``context_not_found``.
            UnsupportedError: The sandbox has no interpreter for this language.
        """
        body = _body(code, language, context, timeout, envs, silent=silent, store_history=store_history, stop_on_error=stop_on_error)
        callbacks = Callbacks(on_stdout, on_stderr, on_result, on_error)
        if background:
            answer = self._client.request("POST", self._code, body={**body, "background": True}, headers=wire.once(), once=True)
            return CodeHandle(self._client, self._code, Transcript(id=str(answer["execution"])), callbacks)
        if not callbacks and self._client.waits:
            return answered(self._client, self._code, body, wire.once())
        transcript = Transcript()
        with closing(run(self._client, self._code, body, transcript, wire.once())) as pieces:
            for piece in pieces:
                callbacks.tell(transcript, piece)
        tell_rest(transcript, on_stdout, on_stderr)
        return ended(transcript)

    def stream_code(
        self,
        code: str,
        language: str | None = None,
        *,
        context: Context | str | None = None,
        timeout: float | None = DEFAULT_COMMAND_TIMEOUT_S,
        envs: Mapping[str, str] | None = None,
        silent: bool = False,
        store_history: bool = True,
        stop_on_error: bool = False,
    ) -> Generator[CodeEvent]:
        """Run code, and iterate what it tells as it comes. Who stops iterating interrupts it.

        Args:
            code: As in :meth:`run_code`.
            language: As in :meth:`run_code`.
            context: As in :meth:`run_code`.
            timeout: As in :meth:`run_code`.
            envs: As in :meth:`run_code`.
            silent: As in :meth:`run_code`.
            store_history: As in :meth:`run_code`.
            stop_on_error: As in :meth:`run_code`.

        Yields:
            Started, Output, Result, Cleared and ExecutionError as they come, and the Execution as the last.
        """
        body = _body(code, language, context, timeout, envs, silent=silent, store_history=store_history, stop_on_error=stop_on_error)
        transcript = Transcript()
        with closing(run(self._client, self._code, body, transcript, wire.once())) as pieces:
            for piece in pieces:
                yield piece
        yield ended(transcript)

    def attach_code(self, id: str, *, events_from: int = 0, stdout_from: int = 0, stderr_from: int = 0) -> CodeHandle:  # noqa: A002 - the word
        """A handle for a cell that was begun before, running or done, also by somebody else or before a restart of the service.

        Args:
            id: The execution's id.
            events_from: How many of its events that are no output have been seen.
            stdout_from: Byte of its standard output that the handle reads first.
            stderr_from: The same of its standard error.
        """
        transcript = Transcript(id=id, events=events_from)
        transcript.stdout.offset, transcript.stderr.offset = stdout_from, stderr_from
        return CodeHandle(self._client, self._code, transcript, Callbacks())

    def create_code_context(self, cwd: str | None = None, language: str | None = None, envs: Mapping[str, str] | None = None) -> Context:
        """``contexts.create`` by the name that it has elsewhere."""
        return self.contexts.create(language or "python", cwd=cwd, envs=envs)


def _body(
    code: str, language: str | None, context: Context | str | None, timeout: float | None, envs: Mapping[str, str] | None, **flags: bool
) -> dict[str, Any]:
    """The body that runs code; ``timeout`` None is sent, because it means "no limit"."""
    words = wire.given(language=language, context=id_of(context), env=None if envs is None else dict(envs))
    return {"code": code, "timeout": timeout, **words, **{name: flag for name, flag in flags.items() if flag is not (name == "store_history")}}
