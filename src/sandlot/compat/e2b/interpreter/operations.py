"""Contexts of E2B's code interpreter, and the execution of code in them.

Invariants:
- Code runs in the user's home directory, like E2B's commands. So each language has its own default context for this API, which the first run creates
  with a constant id. Later requests find the context, also after a pause, in a fork, and after a restart of the service. Before the first run,
  the context is listed, except that of R, which most templates lack, and there is nothing to delete or restart.
- If a client disconnects, its code is interrupted; the context and its variables stay. Code has no other timeout, because the client has one.
- If the sandbox ends, the response is cut, and the client then checks whether the sandbox is running.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import structlog

from sandlot.compat.e2b.interpreter import translate
from sandlot.compat.e2b.translate import VENDOR
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import CellError, CellStarted, CodeAccepted, CodeEnded, CodeEvent, Context, Display, ExecutionOptions, Output, OutputGap
from sandlot.model.specs import CellSpec, context_language
from sandlot.model.streams import Stream
from sandlot.web.streaming import OutputEvents, ndjson_line

HOME = "/home/user"

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "python": "ctx-0000000000000e2b",
        "javascript": "ctx-0000000000001e2b",
        "bash": "ctx-0000000000002e2b",
        "typescript": "ctx-0000000000003e2b",
        "r": "ctx-0000000000004e2b",
    }
)
"""Language -> id of its default context."""

EXTRA_RESULTS: Mapping[str, str] = MappingProxyType({"SANDLOT_EXTRA_RESULTS": "1"})
"""Environment that makes a kernel add results of E2B's template: JSON of dicts and lists, tables, and images that the code saves."""

_log = structlog.get_logger("sandlot.http")


def select_context(id_: str | None, language: str | None) -> tuple[str, str | None]:
    """Return the id of the context for code, and its language if it is a default context. Pure.

    Args:
        id_: Id in the request; "default" and "python" are names of E2B for the default context of Python.
        language: Language in the request.

    Raises:
        InvalidRequestError: The language is unknown, or the request has an id and a language.
    """
    if id_ in {None, "default", "python"}:
        name = context_language((language or "python").lower())
        return DEFAULTS[name], name
    if language is not None:
        raise InvalidRequestError("A context has its own language.", hint="Pass context_id or language, not both.", fields={"field": "language"})
    languages = {context: name for name, context in DEFAULTS.items()}
    return str(id_), languages.get(str(id_))


async def start(
    node: Node, principal: Principal, sandbox: str, source: str, context: str, default: str | None, env: Mapping[str, str]
) -> Stream[CodeEvent]:
    """Start to run code.

    Args:
        node: Node that has the sandbox.
        principal: Caller.
        sandbox: Id of the sandbox.
        source: The code.
        context: Id of the context.
        default: Language of the context if it is a default context, which is created if it does not exist.
        env: Environment of this run.

    Raises:
        NotFoundError: There is no such context (code ``context_not_found``).
    """
    extra = EXTRA_RESULTS if default in {None, "python"} else {}
    cell = CellSpec(source, language=None, context=context, env={**extra, **env}, timeout_s=None)
    options = ExecutionOptions(origin=VENDOR)
    try:
        return await node.code.stream(principal, sandbox, cell, options)
    except NotFoundError as error:
        if default is None or error.code is not ErrorCode.CONTEXT_NOT_FOUND:
            raise
    await node.contexts.create(principal, sandbox, default, cwd=HOME, id=context)
    return await node.code.stream(principal, sandbox, cell, options)


async def lines(events: Stream[CodeEvent]) -> AsyncIterator[bytes]:
    """Yield the events of code as lines of JSON.

    Raises:
        SandboxEndedError: The sandbox has ended meanwhile.
        UnavailableError: The service is stopping.
    """
    output, raised, execution = OutputEvents(), False, ""
    try:
        async for event in events:
            if isinstance(event, CodeAccepted):
                execution = event.execution
            for each in _client_events(event, output, raised=raised):
                yield ndjson_line(each)
            raised = raised or isinstance(event, CellError)
    except (SandboxEndedError, UnavailableError) as error:
        _log.info("execution.cut", execution=execution, code=str(error.code))
        raise
    except SandlotError as error:
        yield ndjson_line(translate.failure(str(error.code), str(error), str(error)))


def _client_events(event: CodeEvent, output: OutputEvents, *, raised: bool) -> Iterator[dict[str, Any]]:
    # The first part of a character is held over other events: the rest of the character may follow them.
    pieces = output.feed(event) if isinstance(event, Output | OutputGap) else output.end() if isinstance(event, CodeEnded) else ()
    for piece in pieces:
        yield translate.output(piece, datetime.now(UTC))
    if isinstance(event, CellStarted):
        yield translate.started(event.count)
    elif isinstance(event, CellError):
        yield translate.error(event)
    elif isinstance(event, Display) and not event.update:  # E2B does not send updates
        yield translate.result(event)
    elif isinstance(event, CodeEnded) and not raised and (ended := translate.end(event.status)) is not None:
        yield ended


def listed_contexts(contexts: Sequence[Context]) -> list[dict[str, Any]]:
    """Return the objects of all contexts of a sandbox, default contexts first. Pure."""
    found = {context.id: context for context in contexts}
    listed = {language: id_ for language, id_ in DEFAULTS.items() if language != "r" or id_ in found}
    defaults = [found.pop(id_, Context(id_, language, HOME, "stopped", 0, None)) for language, id_ in listed.items()]
    return [context_object(context) for context in (*defaults, *found.values())]


@contextmanager
def unused_default(context: str) -> Iterator[None]:
    """Ignore that a default context has not been created."""
    try:
        yield
    except NotFoundError as error:
        if context not in DEFAULTS.values() or error.code is not ErrorCode.CONTEXT_NOT_FOUND:
            raise


def context_object(context: Context) -> dict[str, Any]:
    """Return the object of a context."""
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
