"""Sessions and the runs in them: what core is asked to do, in which order.

Laws:
- Nothing is made where an id that was given is not there.
- A sandbox that was made for a request is gone when the request failed, and soon after it was answered where it was for one run.
- A client that goes away takes its run along; a session stays.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from sandlot.compat.agentsandbox import run_files, translate
from sandlot.compat.agentsandbox.run_files import FileBaseline
from sandlot.compat.agentsandbox.schemas import ExecuteAnswer, ExecuteBody
from sandlot.compat.agentsandbox.translate import Program
from sandlot.compat.common import find_live_sandboxes, find_sandbox, single_chunk
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.files import Entry
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.specs import MAX_ARG_BYTES, User, check_env

_OUTPUT_MODE = 0o1777
_TIDY_S = 2.0
"""Seconds of the client's patience for the removal of a program that has run."""

_Result = TypeVar("_Result")


async def find(node: Node, principal: Principal, session: str) -> SandboxInfo:
    """Return a session by its id.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is no such session, or it belongs to another owner.
        SandboxEndedError: The session has ended; the error says why.
    """
    sandbox: SandboxInfo | None = None
    with suppress(NotFoundError):
        sandbox = await find_sandbox(node, principal, session)
    if sandbox is None or not translate.is_session(sandbox):
        raise translate.no_session(session)
    if translate.is_over(sandbox):
        raise sandbox.ended_error()
    return sandbox


async def listing(node: Node, principal: Principal) -> list[SandboxInfo]:
    """Return all sessions that a principal may see, oldest first."""
    return await find_live_sandboxes(node, principal, translate.SESSION_METADATA)


async def create(node: Node, principal: Principal, env: Mapping[str, str], file_ids: Sequence[str]) -> SandboxInfo:
    """Create a session with files in it.

    Raises:
        SandlotError: The session could not be created, or a file does not exist; then nothing is left of the session.
    """
    await node.file_store.get_many(principal, file_ids)
    sandbox = await node.sandboxes.create(principal, translate.new_session(env, principal))
    try:
        await _furnish(node, principal, sandbox.id, file_ids)
    except BaseException:
        await node.sandboxes.kill(principal, sandbox.id, wait=False)
        raise
    return sandbox


async def inject(node: Node, principal: Principal, session: str, file_ids: Sequence[str]) -> SandboxInfo:
    """Put files into a session, and return the session.

    Raises:
        NotFoundError: ``file_not_found``; then none of the files was put there.
        SandboxEndedError: The session has ended.
    """
    sandbox = await find(node, principal, session)
    await node.file_store.inject(principal, sandbox.id, file_ids)
    return sandbox


async def delete(node: Node, principal: Principal, session: str) -> None:
    """End a session.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    await node.sandboxes.kill(principal, (await find(node, principal, session)).id)


async def execute(node: Node, principal: Principal, body: ExecuteBody) -> ExecuteAnswer:
    """Run code in a process of its own.

    Args:
        node: Node that runs the code.
        principal: Caller.
        body: The request.

    Raises:
        SandlotError: The code could not be run. Code that fails is no error.
    """
    began_s = time.monotonic()
    code, env, file_ids = translate.code_of(body.code), body.env_vars or {}, body.file_ids or ()
    check_env(env)  # before there is a sandbox
    await node.file_store.get_many(principal, file_ids)
    async with _place(node, principal, body.session_id) as sandbox:
        program = translate.program(body.language, secrets.token_hex(8))
        options = ExecutionOptions(origin=translate.NAME, language=body.language, code=body.code)
        try:
            async with _beside(_written(node, principal, sandbox.id, program, body.code, code)) as writing:
                before = await _prepared(node, principal, sandbox.id, file_ids, new=body.session_id is None)
                command = await writing
            spec = translate.process(program, command, env, sandbox.spec.env, time.monotonic() - began_s)
            try:
                done = await node.processes.run(principal, sandbox.id, spec, track=before.tracked, options=options)
            except SandboxEndedError as error:
                return translate.ended(sandbox.id, error)
            left_s = translate.CLIENT_TIMEOUT_S - _TIDY_S - (time.monotonic() - began_s)
            kept = await run_files.collect(before, done.files, min(run_files.COLLECT_S, left_s))
        finally:
            if body.session_id is not None:
                await _tidy(node, principal, sandbox.id, program)
        node.history.note_files(principal, done.outcome.process, len(kept.records))
        return translate.answer(sandbox.id, done, kept, spec.timeout_s or 0.0)


async def _written(node: Node, principal: Principal, sandbox: str, program: Program, code: str, content: bytes) -> tuple[str, ...]:
    """Write a program into its file, and return the command that starts the program.

    Raises:
        LimitError: ``disk_full``, and the program is too large to do without a file.
        SandlotError: The program could not be written, or the sandbox has ended.
    """
    try:
        await node.files.write(principal, sandbox, program.path, single_chunk(content), mode=0o644, user=User.ROOT)
    except LimitError as error:
        if error.code is not ErrorCode.DISK_FULL or len(content) > MAX_ARG_BYTES or b"\0" in content:
            raise
        return translate.argv_without_file(program, code)
    return translate.argv(program)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, _Result]) -> AsyncIterator[asyncio.Task[_Result]]:
    """Do some work while something else is done that has nothing to do with it; whoever leaves before it is done ends it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, SandlotError):
            await task


@asynccontextmanager
async def _place(node: Node, principal: Principal, session: str | None) -> AsyncIterator[SandboxInfo]:
    """Return the session of a run, or a sandbox that ends with the run."""
    if session is not None:
        yield await find(node, principal, session)
        return
    sandbox = await node.sandboxes.create(principal, translate.new_throwaway(principal), single_use=True)
    try:
        yield sandbox
    finally:
        await node.sandboxes.kill(principal, sandbox.id, wait=False)


async def _prepared(node: Node, principal: Principal, sandbox: str, file_ids: Sequence[str], *, new: bool) -> FileBaseline:
    """Put files into the sandbox of a run, and remember the files that are there before the run."""
    if new:
        return FileBaseline(node, principal, sandbox, run_files.seen(await _furnish(node, principal, sandbox, file_ids)))
    await node.file_store.inject(principal, sandbox, file_ids)
    return await FileBaseline.look(node, principal, sandbox)


async def _furnish(node: Node, principal: Principal, sandbox: str, file_ids: Sequence[str]) -> Sequence[Entry]:
    """Create the folder for output in a new sandbox, and put files into the sandbox."""
    await node.files.make_directory(principal, sandbox, run_files.OUTPUT, mode=_OUTPUT_MODE, user=User.ROOT)
    return await node.file_store.inject(principal, sandbox, file_ids)


async def _tidy(node: Node, principal: Principal, sandbox: str, program: Program) -> None:
    """Remove a program that has run."""
    with suppress(SandlotError, TimeoutError):
        async with asyncio.timeout(_TIDY_S):
            await node.files.delete(principal, sandbox, program.folder, recursive=True, user=User.ROOT)
