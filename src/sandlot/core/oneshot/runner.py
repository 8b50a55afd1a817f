"""One-shot runs: run one program in a new sandbox, or a batch of programs in one new sandbox each, a few at a time.

Invariants of a run:
- A program is compiled once. A compile error comes from the compiler or the syntax check, never from the run. The syntax of an interpreted program
  is checked only after the program has failed, so that a program that works does not wait for the check.
- Cases run one after the other, each in its own folder. Before a case starts, all processes of the case before are killed. If a case ends the
  sandbox, the next case runs in a new sandbox.
- A run starts a process that executes a program file in the working directory; the program is not a cell. The sandbox contains nothing of an earlier
  run, and nothing of the run remains afterwards.
- The sandbox has no network. The sandbox is ended when the program exits or exceeds a limit, or when the client disconnects.
- If the program fails, the run still has a result. An error is raised only if the request is invalid or the service cannot run the program.
- The output is graded only if it was kept completely. Otherwise the result has no verdict.

Invariants of a batch:
- Each item has its own result or error, and does not affect other items.
- At most ``concurrency`` programs run at once. If there is no room for a sandbox, its item waits for a limited time.
- A result is sent as soon as its run has ended. A client that reads nothing delays the runs, and a client that disconnects ends the runs.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

import structlog

from sandlot.core.execution import helpers
from sandlot.core.execution.output import OutputCollector, process_outcome
from sandlot.core.execution.processes import ProcessService
from sandlot.core.files import files
from sandlot.core.manager import SandboxManager
from sandlot.core.oneshot.verdict import Observation, combine, compile_error, grade
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.resources.templates import Templates
from sandlot.core.sandbox import GRACE_S, Sandbox
from sandlot.model import utf8
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.buffer_budget import RETRY_AFTER_S
from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import Channel, ExecutionOptions, Output, OutputGap
from sandlot.model.ids import new_process_id
from sandlot.model.languages import Language, language_of
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.programs import (
    CASE_OUTPUT_CHARS,
    COMPILE_OUTPUT_BYTES,
    DEFAULT_CONCURRENCY,
    BatchItem,
    Comparison,
    OneShotParams,
    Result,
    Status,
    check_batch,
)
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import DEFAULT_TEMPLATE, KIB, WORKSPACE, ProcessSpec, User
from sandlot.model.streams import Stream
from sandlot.protocol.helpers import REAP

ROOM_TIMEOUT_S = 5.0
"""Seconds that a run waits for room for its sandbox, for example until the sandbox of the previous run is removed."""
BATCH_ROOM_TIMEOUT_S = 120.0
"""Seconds that an item of a batch waits for room for its sandbox. Other items of the batch may use the room."""

COMPILE_TIMEOUT_S = 60.0
"""Seconds after which a compiler or a syntax check is killed."""
_SPARE_LIFETIME_S = 60.0
"""Seconds by which the lifetime of the sandbox exceeds the timeout of the program. The lifetime ends the sandbox if the service is killed before it
removes the sandbox."""
_KILL_TIMEOUT_S = 5.0
"""Seconds in which a killed program must end."""
_RETRYABLE = frozenset({ErrorCode.BUSY, ErrorCode.QUOTA_EXCEEDED})
"""Codes of errors after which another attempt to create the sandbox may succeed a moment later."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 1.0
"""First and longest pause between two attempts to create a sandbox. Each pause is twice as long as the one before."""
_GRADED_INLINE_CHARS = {Comparison.EXACT: 64 * KIB, Comparison.TRIMMED: 64 * KIB, Comparison.NUMERIC: 4 * KIB}
"""Total length of output and expected output up to which they are compared in the event loop. Longer texts are compared in a thread, because the
comparison takes more than a few milliseconds (numbers: about 3 us for each word)."""

_log = structlog.get_logger("sandlot.core")


class OneShotRunner:
    """Runs programs, each once and in a new sandbox, and grades their output.

    Args:
        grading: Executor that compares long outputs, which can take seconds. Do not pass the default executor of the event loop: requests that
            create a sandbox wait for the threads of the default executor.
    """

    def __init__(
        self,
        manager: SandboxManager,
        processes: ProcessService,
        templates: Templates,
        execution_counter: MonthlyExecutionCounter,
        grading: Executor,
    ) -> None:
        self._manager = manager
        self._templates = templates
        self._processes = processes
        self._execution_counter = execution_counter
        self._grading = grading

    async def run(self, principal: Principal, params: OneShotParams, *, room_timeout_s: float = ROOM_TIMEOUT_S) -> Result:
        """Run a program in a new sandbox and return the result. If the caller is cancelled, the program and the sandbox are ended.

        Args:
            principal: Owner of the sandbox.
            params: Program to run.
            room_timeout_s: Seconds to wait if there is no room for the sandbox.

        Raises:
            SandlotError: The program could not be run. If the program runs and fails, no error is raised.
        """
        params = replace(params, template=await self._choose_template(principal, params))
        results: list[Result] = []
        while len(results) < max(1, len(params.cases)):
            # Before the sandbox is created: a sandbox is expensive, and the quota may refuse the run.
            self._execution_counter.check(principal.owner)
            create_params = _create_params(params, len(params.cases) - len(results), principal)
            sandbox = await self._create_sandbox(principal, create_params, room_timeout_s)
            try:
                refused = await self._run_cases(sandbox, params, results, asyncio.get_running_loop().time() + (create_params.timeout_s or 0.0))
            except NotFoundError as error:
                if error.code is not ErrorCode.PROGRAM_NOT_FOUND:
                    raise
                raise _language_missing(language_of(params.language), params.template or DEFAULT_TEMPLATE, ()) from None
            finally:
                sandbox.request_end(Exit(ExitReason.KILLED, "its one-shot run has ended"))
            if refused is not None:
                return refused
        return combine(results) if params.cases else results[0]

    async def run_batch(
        self, principal: Principal, items: Sequence[OneShotParams | SandlotError], *, concurrency: int = DEFAULT_CONCURRENCY
    ) -> Stream[BatchItem]:
        """Run a batch of programs and return each result as soon as it is known. Closing the stream ends all running programs.

        Args:
            principal: Owner of the sandboxes.
            items: Programs to run. An error stands for an invalid item and is returned unchanged.
            concurrency: Maximum number of programs that run at once.

        Raises:
            InvalidRequestError: The batch is empty or too large, or ``concurrency`` is out of range.
        """
        check_batch(len(items), concurrency)
        return _Batch(self, principal, items, concurrency)

    async def run_item(self, principal: Principal, item: OneShotParams | SandlotError) -> Result | SandlotError:
        """Run one program of a batch. Return an error instead of raising it."""
        if isinstance(item, SandlotError):
            return item
        try:
            return await self.run(principal, item, room_timeout_s=BATCH_ROOM_TIMEOUT_S)
        except SandlotError as error:
            return error
        except Exception:  # noqa: BLE001 - logged; the other items of the batch must not be affected
            _log.exception("one_shot.internal_error")
            return InternalError(
                "Internal error in Sandlot while the program ran.", hint="Report the lines of the service's log that contain one_shot.internal_error."
            )

    async def _choose_template(self, principal: Principal, params: OneShotParams) -> str:
        """Return the template of a run: the one that the request names, or the first that has what the language needs.

        Raises:
            InvalidRequestError: The template that the request names cannot run programs of the language.
        """
        language = language_of(params.language)
        if await self._has_language(principal, params.template or DEFAULT_TEMPLATE, language) is not False:
            return params.template or DEFAULT_TEMPLATE
        others = [info.name for info in await self._templates.list(principal) if await self._has_language(principal, info.name, language)]
        if params.template is None and others:
            return others[0]
        raise _language_missing(language, params.template or DEFAULT_TEMPLATE, others)

    async def _has_language(self, principal: Principal, template: str, language: Language) -> bool | None:
        """Return whether a template has what a language needs; None if this is not known before a sandbox is created."""
        languages = (await self._templates.defaults(await self._templates.find(principal, template))).languages
        return None if languages is None else language.name in languages

    async def _create_sandbox(self, principal: Principal, create_params: CreateSandboxParams, room_timeout_s: float) -> Sandbox:
        """Create the sandbox of a run. If there is no room, retry until ``room_timeout_s`` seconds have passed."""
        loop = asyncio.get_running_loop()
        give_up_s, pause_s = loop.time() + room_timeout_s, _FIRST_PAUSE_S
        while True:
            try:
                return await self._manager.create(principal, create_params, single_use=True)
            except SandlotError as error:
                if error.code not in _RETRYABLE or "retry_after_s" not in error.fields or loop.time() + pause_s > give_up_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _run_cases(self, sandbox: Sandbox, params: OneShotParams, results: list[Result], ends_s: float) -> Result | None:
        """Run the cases that have no result yet, until none is left or the next one needs another sandbox. At least one case runs.

        Args:
            sandbox: A new sandbox.
            params: The program.
            results: Results of the cases, to which those of further cases are added.
            ends_s: Time of the event loop at which the lifetime of the sandbox ends.

        Returns:
            Result of the program if it has a compile error; otherwise None.
        """
        language, has_cases = language_of(params.language), bool(params.cases)
        await self._write_files(sandbox, WORKSPACE, {params.program: params.code.encode(), **params.files})
        for argv in (language.check_types if params.check_types else (), language.compile):
            if argv and (refused := await self._check(sandbox, params, argv)) is not None:
                results += [refused] * (len(params.cases) - len(results)) if results else []
                return None if results else refused
        keep = await _reap(sandbox, None) if has_cases else []
        is_new = True
        for index in range(len(results), max(1, len(params.cases))):
            case = params.for_case(index)
            try:
                if not is_new and not await self._is_usable(sandbox, case, keep, ends_s):
                    break
                oom_kills = await _oom_kills(sandbox) if has_cases or language.compile else 0
                folder = await self._make_case_folder(sandbox, params) if has_cases else WORKSPACE
                observation = await self._run_program(sandbox, case, folder)
            except SandlotError as error:
                if is_new or error.fields.get("reason") == ExitReason.KILLED:
                    raise
                break  # the case before has damaged the sandbox
            is_new = False
            observation.oom_kills = max(0, observation.oom_kills - oom_kills)
            if observation.sandbox_error is not None and observation.sandbox_error.fields.get("reason") == ExitReason.KILLED:
                raise observation.sandbox_error  # a request or the stop of the service killed the sandbox, so the program has no verdict
            result = await self._grade(case, observation)
            if not results and (refused := await self._check_failed(sandbox, case, result)) is not None:
                return refused
            results.append(
                replace(result, stdout=result.stdout[:CASE_OUTPUT_CHARS], stderr=result.stderr[:CASE_OUTPUT_CHARS]) if has_cases else result
            )
            if observation.sandbox_error is not None:
                break
        return None

    async def _is_usable(self, sandbox: Sandbox, case: OneShotParams, keep: Sequence[int], ends_s: float) -> bool:
        """Kill the processes of the case before. Return whether the next case can run in the sandbox, and can take all of its time."""
        left = await _reap(sandbox, keep)
        return set(left) <= set(keep) and asyncio.get_running_loop().time() + case.timeout_s + GRACE_S <= ends_s

    async def _make_case_folder(self, sandbox: Sandbox, params: OneShotParams) -> str:
        """Create the working directory of a case, whose name no earlier case can know, and return its path."""
        folder = f"{WORKSPACE}/.case-{secrets.token_hex(8)}"
        await files.make_directory(sandbox, folder, user=User.USER, parents=False)
        await self._write_files(sandbox, folder, {name: data for name, data in params.files.items() if not name.startswith("/")})
        return folder

    async def _check_failed(self, sandbox: Sandbox, params: OneShotParams, result: Result) -> Result | None:
        """Check the syntax of an interpreted program that has failed. Return the result of the program if it has a syntax error, otherwise None."""
        argv = language_of(params.language).check
        if argv and result.status is Status.RUNTIME_ERROR and result.signal is None:
            with suppress(SandlotError):  # such as a folder in the place of the file
                await self._write_files(sandbox, WORKSPACE, {params.program: params.code.encode()})  # the program may have changed its file
                return await self._check(sandbox, params, argv, is_syntax=True)
        return None

    async def _grade(self, params: OneShotParams, observation: Observation) -> Result:
        if params.expected_output is not None:
            chars = len(observation.stdout) + len(params.expected_output)
            if chars > _GRADED_INLINE_CHARS[params.comparison]:
                return await asyncio.get_running_loop().run_in_executor(self._grading, grade, params, observation)
        return grade(params, observation)

    async def _write_files(self, sandbox: Sandbox, folder: str, contents: Mapping[str, bytes]) -> None:
        for path, content in contents.items():
            await files.write(sandbox, posixpath.join(folder, path), _single_chunk(content), user=User.USER)

    async def _check(self, sandbox: Sandbox, params: OneShotParams, argv: tuple[str, ...], *, is_syntax: bool = False) -> Result | None:
        """Run a compiler or a syntax check. Return the result of the program if it is refused, otherwise None.

        A syntax check that was killed refuses nothing, because the program has run.
        """
        argv = language_of(params.language).command(argv, params.filename)
        spec = ProcessSpec(argv=argv, cwd=WORKSPACE, user=sandbox.spec.user, timeout_s=COMPILE_TIMEOUT_S)
        captured = bytearray()
        try:
            async with sandbox.connection(COMPILE_TIMEOUT_S + GRACE_S) as link:
                call = await link.processes.start(spec, id=new_process_id())
                async for event in call:
                    if isinstance(event, Output) and len(captured) < COMPILE_OUTPUT_BYTES:
                        captured += event.data[: COMPILE_OUTPUT_BYTES - len(captured)]
                outcome = process_outcome(call.id, await call.result())
        except SandboxEndedError as error:
            raise await sandbox.explain(error) from None
        if outcome.exit_code == 0 or (is_syntax and outcome.reason != "exited"):
            return None
        return compile_error(params, outcome, captured.decode("utf-8", "replace"))

    async def _run_program(self, sandbox: Sandbox, params: OneShotParams, folder: str) -> Observation:
        language = language_of(params.language)
        argv = language.command(language.run, params.filename)
        spec = ProcessSpec(argv=argv, env=params.env, cwd=folder, stdin=True, timeout_s=params.timeout_s)
        options = ExecutionOptions(origin=params.origin, language=language.name, code=params.code)
        loop = asyncio.get_running_loop()
        process = await self._processes.start(sandbox, spec, stdin=params.stdin, options=options)
        started_s = loop.time()
        output = OutputCollector(sandbox.buffers, head_bytes=params.output_bytes, tail_bytes=0)
        observation = Observation(execution=process.id)
        try:
            # The guest enforces the timeout of the program. The timeout of the connection applies if the guest fails to do so.
            async with sandbox.connection(params.timeout_s + GRACE_S):
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as until_killed:
                        async for event in process:
                            if not observation.output_exceeded and not _keep(output, event, params.output_bytes):
                                observation.output_exceeded = True
                                until_killed.reschedule(loop.time() + _KILL_TIMEOUT_S)
                                await self._processes.signal(OPERATOR, sandbox.id, process.id, int(signals.SIGKILL))
                        observation.outcome = await process.outcome()
            if observation.outcome is not None and observation.outcome.exit_code:
                observation.oom_kills = await _oom_kills(sandbox)
        except SandboxEndedError as error:
            observation.sandbox_error = error
        finally:
            observation.duration_s = loop.time() - started_s
            output.close()
            await process.close()
        stdout, stderr = (output.captures[channel].content() for channel in Channel)
        if observation.output_exceeded:
            stdout, stderr = (content[: len(content) - utf8.incomplete_end(content)] for content in (stdout, stderr))
        observation.stdout, observation.stderr = (content.decode("utf-8", "replace") for content in (stdout, stderr))
        observation.stdout_is_utf8 = "\ufffd" not in observation.stdout or observation.stdout.encode() == stdout
        return observation


class _Batch:
    """Results of a batch. The programs run from the first ``__anext__`` on.

    Args:
        runner: Runs the programs.
        principal: Owner of the sandboxes.
        items: Programs, or errors for invalid items.
        concurrency: Number of programs that run at once.
    """

    def __init__(self, runner: OneShotRunner, principal: Principal, items: Sequence[OneShotParams | SandlotError], concurrency: int) -> None:
        self._runner = runner
        self._principal = principal
        self._todo = iter(enumerate(items))
        self._left = len(items)
        self._concurrency = min(concurrency, len(items))
        self._done: asyncio.Queue[BatchItem | None] = asyncio.Queue(maxsize=1)
        self._workers: list[asyncio.Task[None]] = []
        self._closing: asyncio.Future[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchItem:
        if self._closing is not None or not self._left:
            await self.aclose()
            raise StopAsyncIteration
        if not self._workers:
            self._workers = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        item = await self._done.get()
        if item is None:  # closed meanwhile
            raise StopAsyncIteration
        self._left -= 1
        return item

    async def aclose(self) -> None:
        """End all running programs. Idempotent."""
        if self._closing is None:
            for worker in self._workers:
                worker.cancel()
            self._closing = asyncio.gather(*self._workers, return_exceptions=True)
        await self._closing
        if self._done.empty():
            self._done.put_nowait(None)

    async def _work(self) -> None:
        for index, item in self._todo:
            await self._done.put(BatchItem(index, await self._runner.run_item(self._principal, item)))


async def _reap(sandbox: Sandbox, keep: Sequence[int] | None) -> Sequence[int]:
    """Kill all processes of a sandbox except ``keep``; None kills none. Return the pids of the processes that are left."""
    helper = await helpers.start(sandbox, REAP, {"keep": None if keep is None else list(keep)}, user=User.ROOT)
    try:
        pids = (await helper.result()).get("pids")
    finally:
        helper.close()
    return [pid for pid in pids if isinstance(pid, int)] if isinstance(pids, list) else []


async def _oom_kills(sandbox: Sandbox) -> int:
    return 0 if sandbox.instance is None else (await sandbox.instance.usage()).oom_kills


def _language_missing(language: Language, template: str, others: Sequence[str]) -> InvalidRequestError:
    names = " or ".join(f"`{name}`" for name in others) or "a template with the compiler or interpreter"
    return InvalidRequestError(
        f"The template {template!r} cannot run programs in {language.title}.",
        hint=f"Use {names}, or no template.",
        fields={"field": "template", "language": language.name, "templates": list(others)},
    )


def _create_params(params: OneShotParams, cases: int, principal: Principal) -> CreateSandboxParams:
    longest_s = principal.quota.lifetime_s
    lifetime_s = params.timeout_s * max(1, cases) + COMPILE_TIMEOUT_S + _SPARE_LIFETIME_S
    return CreateSandboxParams(
        template=params.template or DEFAULT_TEMPLATE,
        metadata=params.metadata,
        limits=LimitsChange.to(params.limits),
        timeout_s=lifetime_s if longest_s is None else max(1.0, params.timeout_s, min(lifetime_s, longest_s)),
        isolation=params.isolation,
        network=NetworkPolicy(NetworkMode.NONE),
    )


def _keep(output: OutputCollector, event: Output | OutputGap, max_bytes: int) -> bool:
    """Collect the output of an event. Return False if the program has exceeded its output limit.

    Raises:
        UnavailableError: The service's memory for client data is used up (``busy``).
    """
    if isinstance(event, OutputGap):  # the program wrote faster than its output could be read, so bytes are missing
        return False
    capture = output.captures[event.channel]
    room = max_bytes - capture.held_bytes
    output.add(Output(event.channel, event.offset, event.data[:room]))
    if capture.omitted:
        raise UnavailableError(
            "The service's memory for client data is used up, so the output of the program could not be kept completely.",
            code=ErrorCode.BUSY,
            hint="Retry in a moment, with fewer runs at once or a smaller `output_bytes`.",
            fields={"retry_after_s": RETRY_AFTER_S},
        )
    return len(event.data) <= room


async def _single_chunk(content: bytes) -> AsyncIterator[bytes]:
    yield content
