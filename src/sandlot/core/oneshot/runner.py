"""A program that is run once, in a sandbox of its own that is removed with it.

Laws:
- A run is a process on a program file in the working folder, not a cell: nothing of another run is there, and nothing of it stays.
- Its sandbox has no network, and is ended however the run ended: by itself, by a limit, or because its client went away.
- A program that fails is a result. What raises is a request that makes no sense, or a service that cannot run it.
- A verdict is made of all that the program wrote: where that cannot be kept, there is none.

Programs that are run once, many of them: each in a sandbox of its own, a few at a time.

Laws:
- Every item has a result or an error of its own; none spoils another's, whatever it is.
- At most so many sandboxes as were asked for are made at once. Where there is no room for one, its item waits within bounds.
- What is done is given as soon as it is; a reader that does not read stops the runs, and one that goes away ends them.
"""

from __future__ import annotations

import asyncio
import posixpath
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import structlog

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.execution.output import CommandOutputCollector
from sandlot.core.execution.processes import ProcessService
from sandlot.core.files import files
from sandlot.core.lifecycle.recovery import ONE_RUN, USE_WORD
from sandlot.core.manager import SandboxManager
from sandlot.core.node.buffer_budget import RETRY_AFTER_S
from sandlot.core.oneshot.comparison import Comparison
from sandlot.core.oneshot.params import OneShotParams, language_of
from sandlot.core.oneshot.verdict import Observation, Result, graded
from sandlot.core.records.execution_log import ExecutionDescription
from sandlot.core.sandbox import GRACE_S, Sandbox
from sandlot.link.types import Lost, Output
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import KIB, WORKSPACE, Network, ProcessSpec, User
from sandlot.protocol.schema import STDERR, STDOUT

PATIENCE_S = 5.0
"""How long a run waits for room: that of the one before it may be on its way."""
_DEADLINE_S = 60.0
"""How much longer than its run a sandbox may live, for the case that the service is killed before it has removed it."""
_KILL_PATIENCE_S = 5.0
_MAY_PASS = frozenset({ErrorCode.BUSY, ErrorCode.QUOTA_EXCEEDED})
"""Why a sandbox cannot be made now, and perhaps in a moment."""
_LOOK_S, _LOOK_MOST_S = 0.1, 1.0
_GRADED_AT_ONCE_CHARS = {Comparison.EXACT: 64 * KIB, Comparison.TRIMMED: 64 * KIB, Comparison.NUMERIC: 4 * KIB}
"""Of both texts: what takes longer to compare than a few milliseconds (numbers take about 3 us a word) is compared in a thread."""


async def execute(
    manager: SandboxManager, processes: ProcessService, principal: Principal, params: OneShotParams, *, patience_s: float = PATIENCE_S
) -> Result:
    """Run a program in a sandbox of its own. Cancelling ends both.

    Args:
        manager: Who makes it.
        processes: Runs the program.
        principal: For whom.
        params: What.
        patience_s: Seconds to wait for room where there is none.

    Raises:
        SandlotError: It could not be run. A program that fails is no error.
    """
    async with _place(manager, principal, params, patience_s) as sandbox:
        await _furnish(sandbox, params)
        seen = await _run(processes, sandbox, params)
        if seen.ended is not None and seen.ended.fields.get("reason") == ExitReason.KILLED:
            raise seen.ended  # by somebody, or because the service stops: nothing is known of the program
    if params.expected_output is not None and len(seen.stdout) + len(params.expected_output) > _GRADED_AT_ONCE_CHARS[params.comparison]:
        return await asyncio.get_running_loop().run_in_executor(manager.grading, graded, params, seen)
    return graded(params, seen)


@asynccontextmanager
async def _place(manager: SandboxManager, principal: Principal, params: OneShotParams, patience_s: float) -> AsyncIterator[Sandbox]:
    """A sandbox that ends with the block."""
    manager.check_runs(principal)  # a sandbox is much to make for a run that may not begin
    sandbox = await _created(manager, _asked(params, principal), principal, patience_s)
    sandbox.single_use = True
    try:
        yield sandbox
    finally:
        sandbox.request_end(Exit(ExitReason.KILLED, "its run is over"))


async def _created(manager: SandboxManager, params: CreateSandboxParams, principal: Principal, patience_s: float) -> Sandbox:
    """A sandbox; where there is no room, as soon as there is some."""
    loop = asyncio.get_running_loop()
    give_up_s, wait_s = loop.time() + patience_s, _LOOK_S
    while True:
        try:
            return await manager.create(params, principal)
        except SandlotError as error:
            if error.code not in _MAY_PASS or "retry_after_s" not in error.fields or loop.time() + wait_s > give_up_s:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LOOK_MOST_S)


def _asked(params: OneShotParams, principal: Principal) -> CreateSandboxParams:
    longest_s = principal.quota.lifetime_s
    deadline_s = params.timeout_s + _DEADLINE_S
    return CreateSandboxParams(
        template=params.template,
        metadata={**params.metadata, USE_WORD: ONE_RUN},
        limits=params.limits,
        timeout_s=deadline_s if longest_s is None else max(1.0, params.timeout_s, min(deadline_s, longest_s)),
        isolation=params.isolation,
        network=Network.NONE,
    )


async def _furnish(sandbox: Sandbox, params: OneShotParams) -> None:
    """Give a sandbox the program and its files."""
    for path, content in {params.program: params.code.encode(), **params.files}.items():
        await files.write(sandbox, posixpath.join(WORKSPACE, path), _once(content), user=User.USER)


async def _run(processes: ProcessService, sandbox: Sandbox, params: OneShotParams) -> Observation:
    language = language_of(params.language)
    spec = ProcessSpec(argv=(language.interpreter, params.program), env=params.env, cwd=WORKSPACE, stdin=True, timeout_s=params.timeout_s)
    description = ExecutionDescription(origin=params.origin, language=language.name, code=params.code)
    loop = asyncio.get_running_loop()
    process = await processes.start(sandbox, spec, stdin=params.stdin, description=description)
    began_s = loop.time()
    output = CommandOutputCollector(sandbox.buffers, head_bytes=params.output_bytes, tail_bytes=0)
    seen = Observation(execution=process.id)
    try:
        # The guest ends it on time; this is for a guest that does not.
        async with sandbox.connection(params.timeout_s + GRACE_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as patience:
                    async for event in process:
                        if not seen.flooded and not _kept(output, event, params.output_bytes):
                            seen.flooded = True
                            patience.reschedule(loop.time() + _KILL_PATIENCE_S)
                            await processes.signal(sandbox, process.id, int(signals.SIGKILL))
                    seen.outcome = await process.outcome()
        if seen.outcome is not None and seen.outcome.exit_code and sandbox.instance is not None:
            seen.oom_kills = (await sandbox.instance.usage()).oom_kills
    except SandboxEndedError as error:
        seen.ended = error
    finally:
        seen.duration_s = loop.time() - began_s
        output.close()
        await process.close()
    seen.stdout, seen.stderr = (output.captures[channel].text() for channel in (STDOUT, STDERR))
    return seen


def _kept(output: CommandOutputCollector, event: Output | Lost, most_bytes: int) -> bool:
    """Keep the next piece of what a process writes; False where it has written more than it may.

    Raises:
        UnavailableError: ``busy``: there is no memory for it.
    """
    if isinstance(event, Lost):  # nothing is lost of what is read all the time, unless a guest says so
        return False
    capture = output.captures[event.channel]
    room = most_bytes - capture.held_bytes
    output.add(Output(event.channel, event.offset, event.data[:room]))
    if capture.omitted:
        raise UnavailableError(
            "The service holds as much data for its clients as it may, so that not all of what the program wrote could be kept.",
            code=ErrorCode.BUSY,
            hint="Try again in a moment, with fewer runs at once or a smaller output_bytes.",
            fields={"retry_after_s": RETRY_AFTER_S},
        )
    return len(event.data) <= room


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


MAX_ITEMS = 1000
DEFAULT_CONCURRENCY = 4
MAX_CONCURRENCY = 32
BATCH_PATIENCE_S = 120.0
"""How long an item waits for room, which its neighbours may have."""
_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class BatchItem:
    """One item of a batch: its result, or its error.

    Args:
        index: Which, from 0.
        outcome: It.
    """

    index: int
    outcome: Result | SandlotError


def check(items: int, concurrency: int) -> None:
    """Refuse a batch that is too large.

    Args:
        items: How many it has.
        concurrency: How many are to run at once.

    Raises:
        InvalidRequestError: One of the two is out of bounds.
    """
    for field, value, most in (("items", items, MAX_ITEMS), ("concurrency", concurrency, MAX_CONCURRENCY)):
        if not 1 <= value <= most:
            raise InvalidRequestError(
                f"A batch has {field} from 1 to {most}, not {value}.", hint="Make several batches of it.", fields={"field": field}
            )


async def execute_batch(
    manager: SandboxManager,
    processes: ProcessService,
    principal: Principal,
    items: Sequence[OneShotParams | SandlotError],
    *,
    concurrency: int = DEFAULT_CONCURRENCY,
) -> AsyncGenerator[BatchItem]:
    """Run programs, and give what becomes of each as soon as it is known. Closing it ends those that run.

    Args:
        manager: Who makes their sandboxes.
        processes: Runs the programs.
        principal: For whom.
        items: What; an error that stands for one that makes no sense comes back as it is.
        concurrency: How many run at once.

    Raises:
        InvalidRequestError: It is too large.
    """
    check(len(items), concurrency)
    done: asyncio.Queue[BatchItem] = asyncio.Queue(maxsize=1)
    todo = iter(enumerate(items))

    async def work() -> None:
        for index, item in todo:
            await done.put(BatchItem(index, await _outcome(manager, processes, principal, item)))

    workers = [asyncio.create_task(work()) for _ in range(min(concurrency, len(items)))]
    try:
        for _ in items:
            yield await done.get()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def _outcome(
    manager: SandboxManager, processes: ProcessService, principal: Principal, item: OneShotParams | SandlotError
) -> Result | SandlotError:
    if isinstance(item, SandlotError):
        return item
    try:
        return await execute(manager, processes, principal, item, patience_s=BATCH_PATIENCE_S)
    except SandlotError as error:
        return error
    except Exception:  # noqa: BLE001 - the others go on
        _log.exception("batch.defect")
        return InternalError("This item failed by a defect in Sandlot.", hint="The service's log has the details.")
