"""Run of a program in a new sandbox: once, or once for each of its cases.

Invariants:
- A program is compiled once in each sandbox. A compile error comes from the compiler or the syntax check, never from the run. The syntax of an
  interpreted program is checked only after the program has failed, so that a program that works does not wait for the check.
- Cases run one after the other, each in its own folder. Before a case starts, all processes of the case before are killed, and its files in the
  working directory and in folders for temporary files are removed. If a case ends the sandbox, the next case runs in a new sandbox.
- A run writes the program to a file in ``/workspace`` and executes it as a process, not as code of a context. The sandbox contains nothing of an
  earlier run, and nothing of the run remains afterwards.
- The sandbox has no network. The sandbox is ended when the program exits or exceeds a limit, or when the client disconnects.
- If the program fails, the run still has a result. An error is raised only if the request is invalid or the service cannot run the program.
- Output is graded only if it is complete. If the service has no memory to keep the output, the run raises ``busy``. If bytes were missed, because the
  program wrote faster than its output could be read, the status is ``output_limit``.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, replace

from sandlot.core.execution import helpers
from sandlot.core.execution.output import OutputCollector, process_outcome
from sandlot.core.execution.processes import ProcessService
from sandlot.core.files import files
from sandlot.core.manager import SandboxManager
from sandlot.core.programs.batch import Batch
from sandlot.core.programs.templates import LanguageTemplates
from sandlot.core.programs.verdict import Observation, combine, compile_error, grade
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.core.sandbox import GRACE_S, Sandbox
from sandlot.model import utf8
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.buffer_budget import RETRY_AFTER_S
from sandlot.model.errors import ErrorCode, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import Channel, ExecutionOptions, Output, OutputGap, ProcessOutcome
from sandlot.model.ids import new_process_id
from sandlot.model.languages import language_of
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.paths import WORKSPACE
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.programs import (
    CASE_OUTPUT_CHARS,
    COMPILE_OUTPUT_BYTES,
    DEFAULT_CONCURRENCY,
    KILLED_EXIT_CODE,
    BatchItem,
    Comparison,
    ProgramParams,
    ProgramResult,
    ProgramStatus,
    check_batch,
)
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import DEFAULT_TEMPLATE, KIB, ProcessSpec, User
from sandlot.model.streams import Stream
from sandlot.protocol.helpers import CLEANUP

CAPACITY_TIMEOUT_S = 5.0
"""Seconds that a program waits for the capacity for its sandbox, for example until the sandbox of the previous program is removed."""
COMPILE_TIMEOUT_S = 60.0
"""Seconds after which a compiler or a syntax check is killed."""
_SPARE_LIFETIME_S = 60.0
"""Seconds by which the lifetime of the sandbox exceeds the timeout of the program. The lifetime ends the sandbox if the service is killed before it
removes the sandbox."""
_KILL_TIMEOUT_S = 5.0
"""Seconds in which a killed program must end."""
_RETRYABLE = frozenset({ErrorCode.BUSY, ErrorCode.QUOTA_EXCEEDED})
"""Codes of errors after which another attempt to create the sandbox may succeed a moment later."""
_NOT_EXECUTABLE = frozenset({ErrorCode.PROGRAM_NOT_FOUND, ErrorCode.PERMISSION_DENIED, ErrorCode.INVALID_REQUEST})
"""Codes of the errors of execve(2) for a file that is missing or no program."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 1.0
"""First and longest pause between two attempts to create a sandbox. Each pause is twice as long as the one before."""
_GRADED_INLINE_CHARS = {Comparison.EXACT: 64 * KIB, Comparison.TRIMMED: 64 * KIB, Comparison.NUMERIC: 4 * KIB}
"""Total length of output and expected output up to which they are compared in the event loop. Longer texts are compared in a thread, because the
comparison takes more than a few milliseconds (numbers: about 3 us for each word)."""


@dataclass(frozen=True, slots=True)
class _SandboxContents:
    """Processes of a sandbox, and files in the folders that are emptied between two cases."""

    pids: frozenset[int]
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class _SandboxRun:
    """Runs of a program in one sandbox.

    Args:
        results: Results of the cases that ran; one result if the program has no cases.
        compile_failure: Result of the program if it has a compile error. ``results`` is then empty.
    """

    results: Sequence[ProgramResult] = ()
    compile_failure: ProgramResult | None = None


class ProgramRunner:
    """Runs programs, each once and in a new sandbox, and grades their output.

    Args:
        grading: Executor that compares long outputs, which can take seconds. Do not pass the default executor of the event loop: requests that
            create a sandbox wait for the threads of the default executor.
    """

    def __init__(
        self,
        manager: SandboxManager,
        processes: ProcessService,
        languages: LanguageTemplates,
        execution_counter: MonthlyExecutionCounter,
        grading: Executor,
    ) -> None:
        self._manager = manager
        self._processes = processes
        self._languages = languages
        self._execution_counter = execution_counter
        self._grading = grading

    async def run(self, principal: Principal, params: ProgramParams, *, capacity_timeout_s: float = CAPACITY_TIMEOUT_S) -> ProgramResult:
        """Run a program in a new sandbox and return the result. If the caller is cancelled, the program and the sandbox are ended.

        Args:
            principal: Owner of the sandbox.
            params: Program to run.
            capacity_timeout_s: Seconds to wait if there is no capacity for the sandbox.

        Raises:
            SandlotError: The program could not be run. If the program runs and fails, no error is raised.
        """
        params = replace(params, template=await self._languages.choose(principal, params.language, params.template))
        results: list[ProgramResult] = []
        while len(results) < params.runs:
            done = await self._run_in_sandbox(principal, params, len(results), capacity_timeout_s)
            if done.compile_failure is None:
                results += done.results
            elif not results:
                return done.compile_failure
            else:
                # The program compiled in an earlier sandbox, so the results of its cases stay. The remaining cases fail.
                results += [done.compile_failure] * (params.runs - len(results))
        return combine(results) if params.cases else results[0]

    async def run_batch(
        self, principal: Principal, items: Sequence[ProgramParams | SandlotError], *, concurrency: int = DEFAULT_CONCURRENCY
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
        return Batch(self, principal, items, concurrency)

    async def _run_in_sandbox(self, principal: Principal, params: ProgramParams, first: int, capacity_timeout_s: float) -> _SandboxRun:
        """Create a sandbox and run the cases from the index ``first`` on, until none is left or the next one needs another sandbox."""
        # Before the sandbox is created: a sandbox is expensive, and the quota may refuse the run.
        self._execution_counter.check(principal.owner)
        create_params = _create_params(params, params.runs - first, principal)
        sandbox = await self._create_sandbox(principal, create_params, capacity_timeout_s)
        params = replace(params, limits=LimitsChange.to(sandbox.spec.limits))  # results name the limits that were reached
        ends_s = asyncio.get_running_loop().time() + (create_params.timeout_s or 0.0)
        try:
            failure = await self._compile(sandbox, params)
            if failure is not None:
                return _SandboxRun(compile_failure=failure)
            return await self._run_cases(sandbox, params, first, ends_s)
        except NotFoundError as error:
            if error.code is not ErrorCode.PROGRAM_NOT_FOUND:
                raise
            template = params.template or DEFAULT_TEMPLATE
            raise await self._languages.error_without_language(principal, language_of(params.language), template) from None
        finally:
            sandbox.request_end(Exit(ExitReason.KILLED, "its program has ended"))

    async def _create_sandbox(self, principal: Principal, create_params: CreateSandboxParams, capacity_timeout_s: float) -> Sandbox:
        """Create the sandbox of a program. If there is no capacity, retry until ``capacity_timeout_s`` seconds have passed."""
        loop = asyncio.get_running_loop()
        give_up_s, pause_s = loop.time() + capacity_timeout_s, _FIRST_PAUSE_S
        while True:
            try:
                return await self._manager.create(principal, create_params, single_use=True)
            except SandlotError as error:
                if error.code not in _RETRYABLE or "retry_after_s" not in error.fields or loop.time() + pause_s > give_up_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _compile(self, sandbox: Sandbox, params: ProgramParams) -> ProgramResult | None:
        """Write the files of a program and compile it. Return the result of the program if it has a compile error, otherwise None."""
        language = language_of(params.language)
        await self._write_files(sandbox, WORKSPACE, {params.program_path: params.code.encode(), **params.files})
        for argv in (language.type_check_argv if params.check_types else (), language.compile_argv):
            if argv and (failure := await self._run_compiler(sandbox, params, argv)) is not None:
                return failure
        return None

    async def _run_cases(self, sandbox: Sandbox, params: ProgramParams, first: int, ends_s: float) -> _SandboxRun:
        """Run the cases from the index ``first`` on, until none is left or the next one needs another sandbox. At least one case runs.

        Args:
            sandbox: A new sandbox with the compiled program.
            params: The program.
            first: Index of the first case to run; 0 if the program has no cases.
            ends_s: Time of the event loop at which the lifetime of the sandbox ends.
        """
        loop = asyncio.get_running_loop()
        baseline = await _find_baseline(sandbox) if params.cases else None
        results: list[ProgramResult] = []
        for index in range(first, params.runs):
            case = params.for_case(index)
            try:
                if results and (loop.time() + case.timeout_s + GRACE_S > ends_s or not await self._reset_sandbox(sandbox, baseline)):
                    break
                observation = await self._run_case(sandbox, params, case)
            except SandlotError as error:
                if not results or error.fields.get("reason") == ExitReason.KILLED:
                    raise
                break  # the case before has damaged the sandbox
            if results and observation.start_error is not None:
                break  # the case before has damaged the compiled program
            sandbox_error = observation.sandbox_error
            if sandbox_error is not None and sandbox_error.fields.get("reason") == ExitReason.KILLED:
                raise sandbox_error  # a request or the stop of the service killed the sandbox, so the program has no verdict
            result = await self._grade(case, observation)
            if index == 0 and (failure := await self._find_syntax_error(sandbox, case, result)) is not None:
                return _SandboxRun(compile_failure=failure)
            results.append(_shorten_output(result) if params.cases else result)
            if sandbox_error is not None:
                break
        return _SandboxRun(results)

    async def _reset_sandbox(self, sandbox: Sandbox, baseline: _SandboxContents | None) -> bool:
        """Remove everything that the case before has left. Return False if something remains, so that the next case needs a new sandbox.

        Args:
            sandbox: The sandbox.
            baseline: Processes and files that stay. None: they could not be listed, for example because there were too many files. The list cannot
                be kept in the sandbox instead, because a program can become root there and change it.
        """
        if baseline is None or (left := await _clean_up(sandbox, baseline)) is None:
            return False
        return left.pids <= baseline.pids and left.files <= baseline.files

    async def _run_case(self, sandbox: Sandbox, params: ProgramParams, case: ProgramParams) -> Observation:
        """Run a program with one of its cases.

        Args:
            sandbox: A new sandbox, or a sandbox after :meth:`_reset_sandbox`.
            params: The program.
            case: Parameters of the run (:meth:`ProgramParams.for_case`).
        """
        # A compiler or an earlier case may have been killed at the memory limit as well.
        oom_kills = await _oom_kills(sandbox) if params.cases or language_of(params.language).compile_argv else 0
        folder = await self._make_case_folder(sandbox, params) if params.cases else WORKSPACE
        observation = await self._run_program(sandbox, case, folder)
        observation.oom_kills = max(0, observation.oom_kills - oom_kills)
        return observation

    async def _make_case_folder(self, sandbox: Sandbox, params: ProgramParams) -> str:
        """Create the working directory of a case, whose name no earlier case can know, and return its path."""
        folder = f"{WORKSPACE}/.case-{secrets.token_hex(8)}"
        await files.make_directory(sandbox, folder, user=sandbox.spec.user, parents=False)
        await self._write_files(sandbox, folder, {name: data for name, data in params.files.items() if not name.startswith("/")})
        return folder

    async def _find_syntax_error(self, sandbox: Sandbox, params: ProgramParams, result: ProgramResult) -> ProgramResult | None:
        """Check the syntax of an interpreted program that has failed. Return the result of the program if it has a syntax error, otherwise None."""
        argv = language_of(params.language).syntax_check_argv
        if argv and result.status is ProgramStatus.RUNTIME_ERROR and result.signal is None:
            with suppress(SandlotError):  # such as a folder in the place of the file
                await self._write_files(sandbox, WORKSPACE, {params.program_path: params.code.encode()})  # the program may have changed its file
                return await self._run_compiler(sandbox, params, argv, is_syntax_check=True)
        return None

    async def _grade(self, params: ProgramParams, observation: Observation) -> ProgramResult:
        if params.expected_output is not None:
            chars = len(observation.stdout) + len(params.expected_output)
            if chars > _GRADED_INLINE_CHARS[params.comparison]:
                return await asyncio.get_running_loop().run_in_executor(self._grading, grade, params, observation)
        return grade(params, observation)

    async def _write_files(self, sandbox: Sandbox, folder: str, contents: Mapping[str, bytes]) -> None:
        for path, content in contents.items():
            await files.write(sandbox, posixpath.join(folder, path), _single_chunk(content), user=sandbox.spec.user)

    async def _run_compiler(
        self, sandbox: Sandbox, params: ProgramParams, argv: tuple[str, ...], *, is_syntax_check: bool = False
    ) -> ProgramResult | None:
        """Run a compiler, a type checker or a syntax check. Return the result of the program if it has a compile error, otherwise None.

        A compiler that was killed means a compile error. A syntax check that was killed does not: the program has run, and its result stands.
        """
        argv = language_of(params.language).expand(argv, params.source)
        spec = ProcessSpec(argv=argv, cwd=WORKSPACE, user=sandbox.spec.user, timeout_s=COMPILE_TIMEOUT_S)
        captured, id_, loop = bytearray(), new_process_id(), asyncio.get_running_loop()
        began_s = loop.time()
        try:
            async with sandbox.connection(COMPILE_TIMEOUT_S + GRACE_S) as link:
                call = await link.processes.start(spec, id=id_)
                async for event in call:
                    if isinstance(event, Output) and len(captured) < COMPILE_OUTPUT_BYTES:
                        captured += event.data[: COMPILE_OUTPUT_BYTES - len(captured)]
                outcome = process_outcome(call.id, await call.result())
            # Before a syntax check, the program has run, and may have been killed at the memory limit.
            oom_kills = 0 if is_syntax_check or outcome.exit_code == 0 else await _oom_kills(sandbox)
        except SandboxEndedError as error:
            explained = await sandbox.explain(error)
            if is_syntax_check or explained.fields.get("reason") != ExitReason.OOM:
                raise explained from None
            outcome, oom_kills = ProcessOutcome(id_, KILLED_EXIT_CODE, int(signals.SIGKILL), "oom", loop.time() - began_s), 0
        if outcome.exit_code == 0 or (is_syntax_check and outcome.reason != "exited"):
            return None
        return compile_error(params, outcome, captured.decode("utf-8", "replace"), oom_kills=oom_kills)

    async def _run_program(self, sandbox: Sandbox, params: ProgramParams, folder: str) -> Observation:
        """Run a compiled program and observe it until it ends, or until it is killed at its output limit.

        Args:
            sandbox: The sandbox.
            params: The program, or one of its cases.
            folder: Working directory.
        """
        language = language_of(params.language)
        argv = language.expand(language.run_argv, params.source)
        spec = ProcessSpec(argv=argv, env=params.env, cwd=folder, stdin=True, timeout_s=params.timeout_s, measured=True)
        options = ExecutionOptions(origin=params.origin, language=language.name, code=params.code)
        loop = asyncio.get_running_loop()
        try:
            process = await self._processes.start(sandbox, spec, stdin=params.stdin, options=options)
        except SandlotError as error:
            if error.code not in _NOT_EXECUTABLE or not argv[0].startswith(f"{WORKSPACE}/"):
                raise
            return Observation(start_error=error)  # the compiler has written a library, for example
        started_s = loop.time()
        output = OutputCollector(sandbox.buffers, head_bytes=params.output_bytes, tail_bytes=0)
        observation = Observation(execution=process.id)
        try:
            # The guest enforces the timeout of the program. The timeout of the connection applies if the guest fails to do so.
            async with sandbox.connection(params.timeout_s + GRACE_S):
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as kill_timeout:  # set when the program is killed
                        async for event in process:
                            if not observation.output_exceeded and not _collect_output(output, event, params.output_bytes):
                                observation.output_exceeded = True
                                kill_timeout.reschedule(loop.time() + _KILL_TIMEOUT_S)
                                # As the operator, because the service kills the program, not the client.
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


async def _find_baseline(sandbox: Sandbox) -> _SandboxContents | None:
    """Return the processes and files of a sandbox before its first case. None: they could not be listed.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    try:
        return await _clean_up(sandbox, None)
    except SandboxEndedError:
        raise
    except SandlotError:  # such as a sandbox without memory for the helper; its first case can run nevertheless
        return None


async def _clean_up(sandbox: Sandbox, keep: _SandboxContents | None) -> _SandboxContents | None:
    """Kill all processes of a sandbox and remove its files, except ``keep``.

    Returns the processes and files that are left; None if there are too many files to list.

    Args:
        sandbox: The sandbox.
        keep: Processes and files that stay; None to kill and remove nothing.
    """
    request = None if keep is None else {"pids": list(keep.pids), "files": list(keep.files)}
    helper = await helpers.start(sandbox, CLEANUP, {"keep": request}, user=User.ROOT)
    try:
        left = await helper.result()
    finally:
        helper.close()
    pids, paths = left.get("pids"), left.get("files")
    if not isinstance(pids, list) or not isinstance(paths, list):
        return None
    return _SandboxContents(frozenset(pid for pid in pids if isinstance(pid, int)), frozenset(path for path in paths if isinstance(path, str)))


async def _oom_kills(sandbox: Sandbox) -> int:
    return 0 if sandbox.instance is None else (await sandbox.instance.usage()).oom_kills


def _create_params(params: ProgramParams, runs: int, principal: Principal) -> CreateSandboxParams:
    longest_s = principal.quota.lifetime_s
    lifetime_s = params.timeout_s * runs + COMPILE_TIMEOUT_S + _SPARE_LIFETIME_S
    return CreateSandboxParams(
        template=params.template or DEFAULT_TEMPLATE,
        metadata=params.metadata,
        limits=params.limits,
        timeout_s=lifetime_s if longest_s is None else max(1.0, params.timeout_s, min(lifetime_s, longest_s)),
        isolation=params.isolation,
        network=NetworkPolicy(NetworkMode.NONE),
    )


def _shorten_output(result: ProgramResult) -> ProgramResult:
    return replace(result, stdout=result.stdout[:CASE_OUTPUT_CHARS], stderr=result.stderr[:CASE_OUTPUT_CHARS])


def _collect_output(output: OutputCollector, event: Output | OutputGap, max_bytes: int) -> bool:
    """Collect the output of an event. Return False if the program has exceeded its output limit.

    Raises:
        UnavailableError: The service's memory for client data is used up (``busy``).
    """
    if isinstance(event, OutputGap):  # the program wrote faster than its output could be read, so bytes are missing
        return False
    capture = output.captures[event.channel]
    remaining = max_bytes - capture.held_bytes
    output.add(Output(event.channel, event.offset, event.data[:remaining]))
    if capture.omitted:
        raise UnavailableError(
            "The service's memory for client data is used up, so the output of the program could not be kept completely.",
            code=ErrorCode.BUSY,
            hint="Retry in a moment, with fewer runs at once or a smaller `output_bytes`.",
            fields={"retry_after_s": RETRY_AFTER_S},
        )
    return len(event.data) <= remaining


async def _single_chunk(content: bytes) -> AsyncIterator[bytes]:
    yield content
