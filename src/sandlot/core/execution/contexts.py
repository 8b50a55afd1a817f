"""Contexts: kernels with state, several in a sandbox, each of one language.

The guest is the truth: what there is, is asked of it, and nothing is kept here. The default context of a language starts by itself at
its first use; it can be removed, and starts anew at the next. Others are made, and have ids of this service's choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.types import KernelInfo
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import CONTEXT_ID, new_context_id
from sandlot.model.specs import check_env, check_path

LANGUAGES: Mapping[str, str] = {
    "python": "python",
    "python3": "python",
    "py": "python",
    "bash": "bash",
    "sh": "bash",
    "javascript": "javascript",
    "js": "javascript",
    "node": "javascript",
}
"""What a language is called -> the one that there is."""

DEFAULTS: Mapping[str, str] = {"python": "default", "bash": "bash", "javascript": "javascript"}
"""Language -> its default context."""

_ABSENT = {ErrorCode.NOT_FOUND: ErrorCode.CONTEXT_NOT_FOUND, ErrorCode.PROCESS_NOT_FOUND: ErrorCode.EXECUTION_NOT_FOUND}


@dataclass(frozen=True, slots=True)
class Context:
    """One context.

    Args:
        id: Its id.
        language: python, bash or javascript.
        cwd: The folder that it started in.
        state: starting, idle, busy, or stopped where it starts with its next cell.
        execution_count: How many cells it has run.
        pid: Its process inside; None where none runs.
    """

    id: str
    language: str
    cwd: str
    state: str
    execution_count: int
    pid: int | None


def language_of(word: str) -> str:
    """The language that a word stands for.

    Raises:
        InvalidRequestError: None that contexts have.
    """
    language = LANGUAGES.get(word)
    if language is None:
        raise InvalidRequestError(
            f"Code in {word[:50]!r} cannot be run as a cell.",
            hint=f"Cells can be: {', '.join(LANGUAGES)}. Anything else runs as a command, from a file.",
            fields={"field": "language"},
        )
    return language


def default_of(word: str) -> str:
    """The default context of a language.

    Raises:
        InvalidRequestError: There is no such language.
    """
    return DEFAULTS[language_of(word)]


def check_id(id_: str) -> str:
    """An id that a context can have.

    Raises:
        NotFoundError: ``context_not_found``: none can.
    """
    if id_ not in DEFAULTS.values() and not CONTEXT_ID.fullmatch(id_):
        raise unknown(id_)
    return id_


def id_from(name: str) -> str:
    """The id of a context that 16 or more hexadecimal digits of the caller's name."""
    return f"ctx-{name[:16]}"


def unknown(id_: str) -> NotFoundError:
    """What a call is answered with that names a context which is not there."""
    return NotFoundError(
        f"There is no context {id_[:64]!r}.",
        code=ErrorCode.CONTEXT_NOT_FOUND,
        hint="It may have been deleted: list the contexts, or create one.",
        fields={"context": id_[:64]},
    )


def not_found(error: NotFoundError) -> NotFoundError:
    """A guest's word for a context, or an execution, that is not there, as clients are told; any other stays as it is."""
    code = _ABSENT.get(error.code)
    return error if code is None else NotFoundError(error.message, code=code, hint=error.hint)


@asynccontextmanager
async def reaching(sandbox: Sandbox) -> AsyncIterator[Link]:
    """The link for one call about a context or an execution; one that is not there is said as clients are told."""
    try:
        async with sandbox.connection() as link:
            yield link
    except NotFoundError as error:
        raise not_found(error) from None


async def create(sandbox: Sandbox, language: str, *, cwd: str | None = None, env: Mapping[str, str] | None = None, id: str | None = None) -> Context:  # noqa: A002 - the word
    """Make a context; its kernel starts at once.

    Args:
        sandbox: Where.
        language: A key of ``LANGUAGES``.
        cwd: Absolute folder that it starts in; None is the workspace.
        env: Added to the sandbox's environment.
        id: Its id, where the caller chose one; that of a context that is there gives it back as it is. Without it, a caller who gives up while
            it is made leaves none.

    Raises:
        InvalidRequestError: No such language, or no such folder can be.
        NotFoundError: ``path_not_found``.
        LimitError: ``limit_exceeded``: there are too many.
        UnsupportedError: The image has nothing that runs the language.
        SandboxEndedError: The sandbox has ended.
    """
    check_env(env or {})
    if cwd is not None:
        check_path(cwd)
    chosen = id or new_context_id()
    try:
        async with sandbox.connection() as link:
            made = _context(await link.create_kernel(chosen, language_of(language), cwd=cwd, env=env))
            sandbox.contexts.add(made.id)
            return made
    except asyncio.CancelledError:
        if id is None:
            sandbox.spawn(_given_up(sandbox, chosen))
        raise


async def listing(sandbox: Sandbox) -> list[Context]:
    """Every context that there is; a default one from its first use on."""
    async with sandbox.connection() as link:
        return [_context(info) for info in await link.kernels()]


async def get(sandbox: Sandbox, id_: str) -> Context:
    """One context.

    Raises:
        NotFoundError: ``context_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    check_id(id_)
    for context in await listing(sandbox):
        if context.id == id_:
            return context
    raise unknown(id_)


async def remove(sandbox: Sandbox, id_: str) -> None:
    """End a context: what runs in it is killed, what waits is aborted. A default one starts anew at its next use.

    Raises:
        NotFoundError: ``context_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    sandbox.contexts.discard(id_)
    async with reaching(sandbox) as link:
        await link.remove_kernel(check_id(id_))


async def restart(sandbox: Sandbox, id_: str) -> None:
    """End a context's kernel: what runs in it is killed, what waits is aborted, and the next cell finds a new one without variables.

    Raises:
        NotFoundError: ``context_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with reaching(sandbox) as link:
        await link.restart(check_id(id_))


async def interrupt(sandbox: Sandbox, id_: str) -> bool:
    """Interrupt what runs in a context, as Ctrl-C would; whether something did.

    Raises:
        NotFoundError: ``context_not_found``.
        SandboxEndedError: The sandbox has ended.
    """
    async with reaching(sandbox) as link:
        return await link.interrupt(check_id(id_))


async def _given_up(sandbox: Sandbox, id_: str) -> None:
    """Nobody has heard of a context that was being made, and nobody ever will."""
    with suppress(SandlotError):
        await remove(sandbox, id_)


def _context(info: KernelInfo) -> Context:
    return Context(info.kernel, info.language, info.cwd, info.state, info.execution_count, info.pid)
