"""Where code runs, and how it is followed.

Laws:
- E2B's code runs in the user's home, as its commands do. So the context that a language has by default is one of its own, made at its first
  use, with an id that is always the same: whoever comes next finds it, also after a pause, in a fork, and by the service after this one.
- A client that goes away interrupts its code; the context and its variables stay. Code has no other timeout: the client has one.
- A sandbox that ends under its code cuts the answer: clients then ask whether it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import structlog

from sandlot.compat.e2b.interpreter import translate
from sandlot.compat.e2b.translate import NAME
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import CellError, CellStarted, CodeAccepted, CodeEnded, CodeEvent, Context, Display, ExecutionOptions, Output, OutputGap
from sandlot.model.specs import CellSpec, context_language
from sandlot.model.streams import Stream
from sandlot.web.streaming import OutputEvents, ndjson_line

HOME = "/home/user"

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {"python": "ctx-0000000000000e2b", "javascript": "ctx-0000000000001e2b", "bash": "ctx-0000000000002e2b"}
)
"""Language -> the id of the context that it has by default."""

_log = structlog.get_logger("sandlot.http")


def context_of(id_: str | None, language: str | None) -> tuple[str, str | None]:
    """Which context code runs in, and the language of it where it is a default one. Pure.

    Args:
        id_: The context that was asked for; "default" and "python" are E2B's names of one.
        language: The language that was asked for.

    Raises:
        InvalidRequestError: There is no such language, or both were asked for.
    """
    if id_ in {None, "default", "python"}:
        spoken = context_language((language or "python").lower())
        return DEFAULTS[spoken], spoken
    if language is not None:
        raise InvalidRequestError("A context has its own language.", hint="Give context_id or language, not both.", fields={"field": "language"})
    known = {context: spoken for spoken, context in DEFAULTS.items()}
    return str(id_), known.get(str(id_))


async def start(
    node: Node, principal: Principal, sandbox: str, source: str, context: str, default: str | None, env: Mapping[str, str]
) -> Stream[CodeEvent]:
    """Begin to run code.

    Args:
        node: Runs the code.
        principal: Whose sandbox that is.
        sandbox: The sandbox's id.
        source: The code.
        context: The context's id.
        default: Its language, where it is the default one, which is made where it is not there.
        env: For this run.

    Raises:
        NotFoundError: ``context_not_found``.
        SandlotError: It cannot be begun.
    """
    cell = CellSpec(source, language=None, context=context, env=env, timeout_s=None)
    options = ExecutionOptions(origin=NAME)
    try:
        return await node.code.stream(principal, sandbox, cell, options)
    except NotFoundError as error:
        if default is None or error.code is not ErrorCode.CONTEXT_NOT_FOUND:
            raise
    await node.contexts.create(principal, sandbox, default, cwd=HOME, id=context)
    return await node.code.stream(principal, sandbox, cell, options)


async def lines(events: Stream[CodeEvent]) -> AsyncIterator[bytes]:
    """What code gives, as it comes, until its end.

    Raises:
        SandboxEndedError: The sandbox ended meanwhile.
        UnavailableError: The service is about to.
    """
    output, raised, execution = OutputEvents(), False, ""
    try:
        async for event in events:
            if isinstance(event, CodeAccepted):
                execution = event.execution
            for each in _told(event, output, raised=raised):
                yield ndjson_line(each)
            raised = raised or isinstance(event, CellError)
    except (SandboxEndedError, UnavailableError) as error:
        _log.info("execution.cut", execution=execution, code=str(error.code))
        raise
    except SandlotError as error:
        yield ndjson_line(translate.failure(str(error.code), str(error), str(error)))


def _told(event: CodeEvent, output: OutputEvents, *, raised: bool) -> Iterator[dict[str, Any]]:
    pieces = output.feed(event) if isinstance(event, Output | OutputGap) else output.end()  # half a character may have come before this
    for piece in pieces:
        yield translate.output(piece, datetime.now(UTC))
    if isinstance(event, CellStarted):
        yield translate.started(event.count)
    elif isinstance(event, CellError):
        yield translate.error(event)
    elif isinstance(event, Display) and not event.update:  # updates are told by E2B neither
        yield translate.result(event)
    elif isinstance(event, CodeEnded) and not raised and (ended := translate.end(event.status)) is not None:
        yield ended


def told(context: Context) -> dict[str, Any]:
    """A context as clients are told of it."""
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
