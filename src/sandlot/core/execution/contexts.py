"""Contexts: kernels that keep their state between cells. A sandbox can have several contexts, each of one language.

The guest owns the contexts; the service keeps none of their state. The default context of a language starts when it is first used. If it is removed,
it starts again when it is used the next time. Clients create all other contexts. The service chooses their ids, unless the caller of :func:`create`
passes an id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.client import Link
from sandlot.link.types import KernelInfo
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError
from sandlot.model.executions import Context
from sandlot.model.ids import new_context_id
from sandlot.model.specs import check_context_id, check_env, check_path, context_language, context_not_found

CONFIRMED: Final[SandboxLocal[set[str]]] = SandboxLocal(lambda _: set())
"""Ids of contexts that are known to exist in a sandbox: this service created or found them, and did not remove them."""

_ABSENT: Final = {ErrorCode.NOT_FOUND: ErrorCode.CONTEXT_NOT_FOUND, ErrorCode.PROCESS_NOT_FOUND: ErrorCode.EXECUTION_NOT_FOUND}


def id_from(name: str) -> str:
    """Return the context id that consists of ``ctx-`` and the first 16 characters of ``name``, a string of at least 16 hexadecimal digits."""
    return f"ctx-{name[:16]}"


def not_found(error: NotFoundError) -> NotFoundError:
    """Return a guest's error with the error code of the API: ``context_not_found`` or ``execution_not_found``.

    An error that is about neither a context nor an execution is returned unchanged.
    """
    code = _ABSENT.get(error.code)
    return error if code is None else NotFoundError(error.message, code=code, hint=error.hint)


@asynccontextmanager
async def reaching(sandbox: Sandbox) -> AsyncIterator[Link]:
    """Provide the link to the guest for one call about a context or an execution.

    Raises:
        NotFoundError: The context (code ``context_not_found``) or the execution (code ``execution_not_found``) does not exist.
    """
    try:
        async with sandbox.connection() as link:
            yield link
    except NotFoundError as error:
        raise not_found(error) from None


async def create(sandbox: Sandbox, language: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None, id: str | None = None) -> Context:  # noqa: A002 - name in the API
    """Create a context and start its kernel.

    Args:
        sandbox: Sandbox of the context.
        language: A key of ``CONTEXT_LANGUAGES``.
        cwd: Absolute path of the working directory; None is the workspace.
        env: Variables added to the environment of the sandbox.
        id: Id that the caller chose; an existing context with this id is returned unchanged. None: the service chooses an id, and
            removes the context again if the caller is cancelled.

    Raises:
        InvalidRequestError: The language or the path is not valid.
        NotFoundError: The working directory does not exist (code ``path_not_found``).
        LimitError: The sandbox has too many contexts (code ``limit_exceeded``).
        UnsupportedError: The image has no program that runs the language.
    """
    check_env(env or {})
    if cwd is not None:
        check_path(cwd)
    chosen = id or new_context_id()
    try:
        async with sandbox.connection() as link:
            context = _context(await link.kernels.create(chosen, context_language(language), cwd=cwd, env=env))
            CONFIRMED.of(sandbox).add(context.id)
            return context
    except asyncio.CancelledError:
        if id is None:
            sandbox.tasks.spawn(_remove_quietly(sandbox, chosen))
        raise


async def listing(sandbox: Sandbox) -> list[Context]:
    """Return all contexts of a sandbox. A default context is included from its first use on."""
    async with sandbox.connection() as link:
        return [_context(info) for info in await link.kernels.list()]


async def get(sandbox: Sandbox, id_: str) -> Context:
    """Return one context.

    Raises:
        NotFoundError: The sandbox has no such context (code ``context_not_found``).
    """
    check_context_id(id_)
    for context in await listing(sandbox):
        if context.id == id_:
            return context
    raise context_not_found(id_)


async def remove(sandbox: Sandbox, id_: str) -> None:
    """End a context: its running cell is killed, and its waiting cells are aborted. A default context starts again at its next use.

    Raises:
        NotFoundError: The sandbox has no such context (code ``context_not_found``).
    """
    CONFIRMED.of(sandbox).discard(id_)
    async with reaching(sandbox) as link:
        await link.kernels.remove(check_context_id(id_))


async def restart(sandbox: Sandbox, id_: str) -> None:
    """End the kernel of a context: its running cell is killed, and its waiting cells are aborted. The next cell gets a new kernel without variables.

    Raises:
        NotFoundError: The sandbox has no such context (code ``context_not_found``).
    """
    async with reaching(sandbox) as link:
        await link.kernels.restart(check_context_id(id_))


async def interrupt(sandbox: Sandbox, id_: str) -> bool:
    """Interrupt the running cell of a context, as Ctrl-C would. Return False if no cell was running.

    Raises:
        NotFoundError: The sandbox has no such context (code ``context_not_found``).
    """
    async with reaching(sandbox) as link:
        return await link.kernels.interrupt(check_context_id(id_))


async def _remove_quietly(sandbox: Sandbox, id_: str) -> None:
    with suppress(SandlotError):
        await remove(sandbox, id_)


def _context(info: KernelInfo) -> Context:
    return Context(info.kernel, info.language, info.cwd, info.state, info.execution_count, info.pid)
