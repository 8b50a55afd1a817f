"""Sessions and the runs in them: what core is asked to do, in which order.

Laws:
- Nothing is made where an id that was given is not there.
- A sandbox that was made for a request is gone when the request failed, and soon after it was answered where it was for one run.
- A client that goes away takes its run along; a session stays.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from sandlot.core.files import files
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.doors.agentsandbox import outputs, translate
from sandlot.doors.agentsandbox.outputs import Before
from sandlot.doors.agentsandbox.translate import Program
from sandlot.doors.agentsandbox.wire import ExecuteAnswer, ExecuteBody
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, LimitError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.files import Entry
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import FileRecord
from sandlot.model.specs import MAX_ARG_BYTES, User, check_env

_OUTPUT_MODE = 0o1777

_Result = TypeVar("_Result")


def find(node: Node, principal: Principal, session: str) -> Sandbox:
    """A session.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is none, or it is somebody else's.
        SandboxEndedError: It has ended, not long ago; says why.
    """
    sandbox: Sandbox | None = None
    with suppress(NotFoundError):
        sandbox = node.registry.find(session, principal)
    if sandbox is None or not translate.is_session(sandbox):
        raise translate.no_session(session)
    if translate.is_over(sandbox):
        raise sandbox.ended_error()
    return sandbox


def listing(node: Node, principal: Principal) -> list[Sandbox]:
    """All sessions that somebody has, oldest first."""
    return [sandbox for sandbox in node.registry.list(principal) if translate.is_session(sandbox) and not translate.is_over(sandbox)]


async def create(node: Node, principal: Principal, env: Mapping[str, str], file_ids: Sequence[str]) -> Sandbox:
    """Make a session, its files in it.

    Raises:
        SandlotError: It could not be made, or there is no such file; then nothing is left of it.
    """
    records = await node.file_store.get_many(principal, file_ids)
    sandbox = await node.manager.create(principal, translate.new_session(env, principal))
    try:
        await _furnish(node, sandbox, records)
    except BaseException:
        _drop(sandbox, "it could not be furnished")
        raise
    return sandbox


async def inject(node: Node, sandbox: Sandbox, principal: Principal, file_ids: Sequence[str]) -> Sequence[FileRecord]:
    """Put files into a session.

    Raises:
        NotFoundError: ``file_not_found``; then none of them was put there.
        SandboxEndedError: The session has ended.
    """
    records = await node.file_store.get_many(principal, file_ids)
    await node.file_store.inject_in(sandbox, records)
    return records


async def delete(node: Node, principal: Principal, session: str) -> None:
    """End a session.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    await node.manager.kill(principal, find(node, principal, session).id)


async def execute(node: Node, principal: Principal, body: ExecuteBody) -> ExecuteAnswer:
    """Run code in a process of its own.

    Args:
        node: Who does it.
        principal: For whom.
        body: What was asked.

    Raises:
        SandlotError: It could not be run. Code that fails is no error.
    """
    began_s = node.clock.monotonic_s()
    code, env = translate.code_of(body.code), body.env_vars or {}
    check_env(env)  # before there is a sandbox
    records = await node.file_store.get_many(principal, body.file_ids or ())
    async with _place(node, principal, body.session_id) as sandbox:
        what = translate.program(body.language, secrets.token_hex(8))
        before: Before | None = None
        try:
            async with _beside(_written(sandbox, what, body.code, code)) as writing:
                before = await _prepared(node, sandbox, records, new=body.session_id is None)
                command = await writing
            spec = translate.process(what, command, env, sandbox.spec.env, node.clock.monotonic_s() - began_s)
            try:
                done = await node.processes.run_in(
                    sandbox, spec, options=ExecutionOptions(origin=translate.NAME, language=body.language, code=body.code)
                )
            except SandboxEndedError as error:
                return translate.ended(sandbox.id, error)
            kept = await outputs.collect(node.file_store, sandbox, before, principal.quota)
        finally:
            if before is not None:
                before.close()
            if body.session_id is not None:
                sandbox.tasks.spawn(_tidy(sandbox, what))
        node.history.note_files(principal, done.outcome.process, len(kept.records))
        return translate.answer(sandbox.id, done, kept, spec.timeout_s or 0.0)


async def _written(sandbox: Sandbox, what: Program, code: str, content: bytes) -> tuple[str, ...]:
    """Write a program into its file; what it is started by.

    Raises:
        LimitError: ``disk_full``, and it is too large to do without a file.
        SandlotError: It could not be written, or the sandbox has ended.
    """
    try:
        await files.write(sandbox, what.path, _once(content), user=User.ROOT, mode=0o644)
    except LimitError as error:
        if error.code is not ErrorCode.DISK_FULL or len(content) > MAX_ARG_BYTES or b"\0" in content:
            raise
        return translate.argv_without_file(what, code)
    return translate.argv(what)


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
async def _place(node: Node, principal: Principal, session: str | None) -> AsyncIterator[Sandbox]:
    """Where a run runs: in its session, or in a sandbox that ends with it."""
    if session is not None:
        yield find(node, principal, session)
        return
    sandbox = await node.manager.create(principal, translate.new_throwaway(principal), single_use=True)
    try:
        yield sandbox
    finally:
        _drop(sandbox, "its run is over")


async def _prepared(node: Node, sandbox: Sandbox, records: Sequence[FileRecord], *, new: bool) -> Before:
    """Give a sandbox what a run finds in it, and remember what that is."""
    put = await _furnish(node, sandbox, records) if new else await node.file_store.inject_in(sandbox, records)
    return outputs.empty(sandbox, put) if new else await Before.look(sandbox)


async def _furnish(node: Node, sandbox: Sandbox, records: Sequence[FileRecord]) -> Sequence[Entry]:
    """Give a new sandbox its folder for output, and its files."""
    await files.make_directory(sandbox, outputs.OUTPUT, user=User.ROOT, mode=_OUTPUT_MODE)
    return await node.file_store.inject_in(sandbox, records)


def _drop(sandbox: Sandbox, why: str) -> None:
    """End a sandbox without waiting for that: who asked for it has the answer."""
    sandbox.request_end(Exit(ExitReason.KILLED, why))


async def _tidy(sandbox: Sandbox, what: Program) -> None:
    """Remove a program that has run."""
    with suppress(SandlotError):
        await files.remove(sandbox, what.folder, user=User.ROOT, recursive=True)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
