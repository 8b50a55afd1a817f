"""Sessions of the AgentSandbox API and the runs in them: calls of several node operations in order.

Invariants:
- If an id in a request does not exist, nothing is created.
- A sandbox that was created for a failed request is removed. A sandbox for a single run is removed after the run.
- If a client disconnects, its run is killed; its session stays.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from sandlot.compat.agentsandbox import run_files, translate
from sandlot.compat.agentsandbox.run_files import FileBaseline
from sandlot.compat.agentsandbox.schemas import ExecuteRequest, ExecuteResponse
from sandlot.compat.agentsandbox.translate import Program
from sandlot.compat.common import find_live_sandboxes, find_sandbox, is_ending, is_session, session_metadata, single_chunk
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.files import Entry
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.specs import MAX_ARG_BYTES, User, check_env

_OUTPUT_MODE: Final = 0o1777
_CLEANUP_S: Final = 2.0
"""Seconds of the client's timeout that are left for the removal of a program file."""

_Result = TypeVar("_Result")


async def find_session(node: Node, principal: Principal, session: str) -> SandboxInfo:
    """Return a session by its id.

    Raises:
        NotFoundError: There is no such session, or it belongs to another owner (code ``sandbox_not_found``).
        SandboxEndedError: The session has ended.
    """
    sandbox: SandboxInfo | None = None
    with suppress(NotFoundError):
        sandbox = await find_sandbox(node, principal, session)
    if sandbox is None or not is_session(sandbox, translate.VENDOR):
        raise translate.session_not_found(session)
    if is_ending(sandbox):
        raise sandbox.ended_error()
    return sandbox


async def list_sessions(node: Node, principal: Principal) -> list[SandboxInfo]:
    """Return all sessions that a principal may see, oldest first."""
    return await find_live_sandboxes(node, principal, session_metadata(translate.VENDOR))


async def create_session(node: Node, principal: Principal, env: Mapping[str, str], file_ids: Sequence[str]) -> SandboxInfo:
    """Create a session with files in it.

    Raises:
        SandlotError: The session could not be created, or a file does not exist; then nothing is left of the session.
    """
    await node.file_store.get_many(principal, file_ids)
    sandbox = await node.sandboxes.create(principal, translate.session_params(env, principal))
    try:
        await _prepare_new(node, principal, sandbox.id, file_ids)
    except BaseException:
        await node.sandboxes.kill(principal, sandbox.id, wait=False)
        raise
    return sandbox


async def inject_files(node: Node, principal: Principal, session: str, file_ids: Sequence[str]) -> SandboxInfo:
    """Copy files into a session, and return the session.

    Raises:
        NotFoundError: A file does not exist (code ``file_not_found``); then no file was copied.
        SandboxEndedError: The session has ended.
    """
    sandbox = await find_session(node, principal, session)
    await node.file_store.inject(principal, sandbox.id, file_ids)
    return sandbox


async def delete_session(node: Node, principal: Principal, session: str) -> None:
    """Kill a session.

    Raises:
        NotFoundError: There is no such session (code ``sandbox_not_found``).
    """
    await node.sandboxes.kill(principal, (await find_session(node, principal, session)).id)


async def execute(node: Node, principal: Principal, body: ExecuteRequest) -> ExecuteResponse:
    """Run code in a new process.

    Raises:
        SandlotError: The code could not be run. Code that fails is not an error.
    """
    began_s = time.monotonic()
    content, env, file_ids = translate.encode_code(body.code), body.env_vars or {}, body.file_ids or ()
    check_env(env)  # before there is a sandbox
    await node.file_store.get_many(principal, file_ids)
    async with _run_sandbox(node, principal, body.session_id) as sandbox:
        program = translate.program_file(body.language, secrets.token_hex(8))
        options = ExecutionOptions(origin=translate.VENDOR, language=body.language, code=body.code)
        try:
            async with _in_background(_write_program(node, principal, sandbox.id, program, body.code, content)) as writing:
                baseline = await _prepare(node, principal, sandbox.id, file_ids, new=body.session_id is None)
                argv = await writing
            spec = translate.process_spec(program, argv, env, sandbox.spec.env, time.monotonic() - began_s)
            try:
                result = await node.processes.run(principal, sandbox.id, spec, track=baseline.tracked, options=options)
            except SandboxEndedError as error:
                return translate.ended_response(sandbox.id, error)
            remaining_s = translate.CLIENT_TIMEOUT_S - _CLEANUP_S - (time.monotonic() - began_s)
            files = await run_files.collect(baseline, result.files, min(run_files.COLLECT_S, remaining_s))
        finally:
            if body.session_id is not None:
                await _remove_program(node, principal, sandbox.id, program)
        node.history.note_files(principal, result.outcome.process, len(files.records))
        return translate.execute_response(sandbox.id, result, files, spec.timeout_s or 0.0)


async def _write_program(node: Node, principal: Principal, sandbox: str, program: Program, code: str, content: bytes) -> tuple[str, ...]:
    """Write a program to its file, and return the command that starts the program.

    Raises:
        LimitError: The disk is full, and the program is too large for an argument (code ``disk_full``).
    """
    try:
        await node.files.write(principal, sandbox, program.path, single_chunk(content), mode=0o644, user=User.ROOT)
    except LimitError as error:
        if error.code is not ErrorCode.DISK_FULL or len(content) > MAX_ARG_BYTES or b"\0" in content:
            raise
        return program.inline_argv(code)
    return program.argv


@asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, _Result]) -> AsyncIterator[asyncio.Task[_Result]]:
    """Run a coroutine as a task beside the body of the context, which waits for the result. The task ends with the context."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, SandlotError):
            await task


@asynccontextmanager
async def _run_sandbox(node: Node, principal: Principal, session: str | None) -> AsyncIterator[SandboxInfo]:
    """Yield the session of a run, or a sandbox that is removed after the run."""
    if session is not None:
        yield await find_session(node, principal, session)
        return
    sandbox = await node.sandboxes.create(principal, translate.single_run_params(principal), single_use=True)
    try:
        yield sandbox
    finally:
        await node.sandboxes.kill(principal, sandbox.id, wait=False)


async def _prepare(node: Node, principal: Principal, sandbox: str, file_ids: Sequence[str], *, new: bool) -> FileBaseline:
    """Copy files into the sandbox of a run, and return the files that are there before the run."""
    if new:
        return FileBaseline(node, principal, sandbox, run_files.snapshot(await _prepare_new(node, principal, sandbox, file_ids)))
    await node.file_store.inject(principal, sandbox, file_ids)
    return await FileBaseline.scan(node, principal, sandbox)


async def _prepare_new(node: Node, principal: Principal, sandbox: str, file_ids: Sequence[str]) -> Sequence[Entry]:
    """Create the output directory in a new sandbox, and copy files into the sandbox."""
    await node.files.make_directory(principal, sandbox, run_files.OUTPUT, mode=_OUTPUT_MODE, user=User.ROOT)
    return await node.file_store.inject(principal, sandbox, file_ids)


async def _remove_program(node: Node, principal: Principal, sandbox: str, program: Program) -> None:
    with suppress(SandlotError, TimeoutError):
        async with asyncio.timeout(_CLEANUP_S):
            await node.files.delete(principal, sandbox, program.directory, recursive=True, user=User.ROOT)
