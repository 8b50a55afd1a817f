"""Contexts: kernels that keep their state between cells. A sandbox can have several contexts, each of one language.

The guest owns the contexts; the service keeps none of their state. The default context of a language starts when it is first used. If it is removed,
it starts again when it is used the next time. Clients create all other contexts. The service chooses their ids, unless the caller of
:meth:`ContextService.create` passes an id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

from sandlot.core.access.idempotency import execution_id
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.link.client import Link
from sandlot.link.types import KernelInfo
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError
from sandlot.model.executions import Context
from sandlot.model.ids import new_context_id
from sandlot.model.specs import check_context_id, check_env, context_language, context_not_found

_ABSENT: Final = {ErrorCode.NOT_FOUND: ErrorCode.CONTEXT_NOT_FOUND, ErrorCode.PROCESS_NOT_FOUND: ErrorCode.EXECUTION_NOT_FOUND}


def not_found(error: NotFoundError) -> NotFoundError:
    """Return a guest's error with the error code of the API: ``context_not_found`` or ``execution_not_found``.

    An error that is about neither a context nor an execution is returned unchanged.
    """
    code = _ABSENT.get(error.code)
    return error if code is None else NotFoundError(error.message, code=code, hint=error.hint)


class ContextService:
    """Creates, finds and ends contexts.

    Attributes:
        confirmed: Ids of contexts that are known to exist in a sandbox: this service created or found them, did not remove them, and the sandbox was
            not suspended since, because it may boot without its memory.
    """

    def __init__(self, registry: SandboxRegistry) -> None:
        self._registry = registry
        self.confirmed: SandboxLocal[set[str]] = SandboxLocal(lambda _: set())

    async def create(
        self,
        principal: Principal,
        sandbox: str,
        language: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002 - name in the API
        idempotency_key: str | None = None,
    ) -> Context:
        """Create a context and start its kernel.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            language: A key of ``CONTEXT_LANGUAGES``.
            cwd: Working directory, relative to that of the sandbox; None is that of the sandbox.
            env: Variables added to the environment of the sandbox.
            id: Id that the caller chose; an existing context with this id is returned unchanged.
            idempotency_key: Key of the request. An equal request with the same key returns the context of the first request. Without key and
                id, the context is removed again if the caller is cancelled.

        Raises:
            InvalidRequestError: The language or the path is not valid.
            NotFoundError: The working directory does not exist (code ``working_directory_not_found``).
            LimitError: The sandbox has too many contexts (code ``limit_exceeded``).
            UnsupportedError: The image has no program that runs the language.
        """
        live = self._registry.find(sandbox, principal)
        if idempotency_key is not None:
            id = f"ctx-{execution_id(live.id, idempotency_key, language, cwd, env)[:16]}"  # noqa: A001
        check_env(env or {})
        if cwd is not None:
            cwd = live.absolute_path(cwd)
        chosen = id or new_context_id()
        try:
            async with live.connection() as link:
                context = _context(await link.kernels.create(chosen, context_language(language), cwd=cwd, env=env))
                self.confirmed.of(live).add(context.id)
                return context
        except asyncio.CancelledError:
            if id is None:
                live.tasks.spawn(self._delete_quietly(live, chosen))
            raise

    async def list(self, principal: Principal, sandbox: str) -> tuple[Context, ...]:
        """Return all contexts of a sandbox. A default context is included from its first use on."""
        async with self._registry.find(sandbox, principal).connection() as link:
            return tuple(map(_context, await link.kernels.list()))

    async def get(self, principal: Principal, sandbox: str, context: str) -> Context:
        """Return one context.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
        """
        check_context_id(context)
        for each in await self.list(principal, sandbox):
            if each.id == context:
                return each
        raise context_not_found(context)

    async def delete(self, principal: Principal, sandbox: str, context: str) -> None:
        """End a context: its running cell is killed, and its waiting cells are aborted. A default context starts again at its next use.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
        """
        await self._delete(self._registry.find(sandbox, principal), context)

    async def restart(self, principal: Principal, sandbox: str, context: str) -> None:
        """End the kernel of a context: its running cell is killed, and its waiting cells are aborted. The next cell gets a new kernel.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
        """
        async with reaching(self._registry.find(sandbox, principal)) as link:
            await link.kernels.restart(check_context_id(context))

    async def interrupt(self, principal: Principal, sandbox: str, context: str) -> bool:
        """Interrupt the running cell of a context, as Ctrl-C would. Return False if no cell was running.

        Raises:
            NotFoundError: The sandbox has no such context (code ``context_not_found``).
        """
        async with reaching(self._registry.find(sandbox, principal)) as link:
            return await link.kernels.interrupt(check_context_id(context))

    async def _delete(self, sandbox: Sandbox, context: str) -> None:
        self.confirmed.of(sandbox).discard(context)
        async with reaching(sandbox) as link:
            await link.kernels.remove(check_context_id(context))

    async def _delete_quietly(self, sandbox: Sandbox, context: str) -> None:
        with suppress(SandlotError):
            await self._delete(sandbox, context)


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


def _context(info: KernelInfo) -> Context:
    return Context(info.kernel, info.language, info.cwd, info.state, info.execution_count, info.pid)
