"""Where code runs, and how it is followed.

Laws:
- E2B's code runs in the user's home, as its commands do. So the context that a language has by default is one of its own, made at its first
  use, with an id that is always the same: whoever comes next finds it, also after a pause, in a fork, and by the service after this one.
- A client that goes away interrupts its code; the context and its variables stay. Code has no other timeout: the client has one.
- A sandbox that ends under its code cuts the answer: clients then ask whether it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from sandlot.core.execution.code import CodeExecution
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.doors.e2b import translate
from sandlot.doors.e2b.interpreter import results
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import CellError, CellStarted, Cleared, Context, Display, ExecutionOptions
from sandlot.model.specs import CellSpec, context_language
from sandlot.web.streams import OutputEvents, line

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
    node: Node, principal: Principal, sandbox: Sandbox, source: str, context: str, default: str | None, env: Mapping[str, str]
) -> CodeExecution:
    """Begin to run code.

    Args:
        node: Runs the code.
        principal: Whose sandbox that is.
        sandbox: Where.
        source: The code.
        context: The context's id.
        default: Its language, where it is the default one, which is made where it is not there.
        env: For this run.

    Raises:
        NotFoundError: ``context_not_found``.
        SandlotError: It cannot be begun.
    """
    cell = CellSpec(source, language=None, context=context, env=env, timeout_s=None)
    options = ExecutionOptions(origin=translate.NAME)
    try:
        return await node.code.start(sandbox, cell, options=options)
    except NotFoundError:
        if default is None:
            raise
    await node.contexts.create(principal, sandbox.id, default, cwd=HOME, id=context)
    return await node.code.start(sandbox, cell, options=options)


async def lines(node: Node, execution: CodeExecution) -> AsyncIterator[bytes]:
    """What code gives, as it comes, until its end.

    Raises:
        SandboxEndedError: The sandbox ended meanwhile.
        UnavailableError: The service is about to.
    """
    try:
        async for each in _told(node, execution):
            yield line(each)
    except (SandboxEndedError, UnavailableError) as error:
        _log.info("execution.cut", execution=execution.id, code=str(error.code))
        raise
    except SandlotError as error:
        yield line(results.failure(str(error.code), str(error), str(error)))


async def _told(node: Node, execution: CodeExecution) -> AsyncIterator[dict[str, Any]]:
    output, raised = OutputEvents(), False
    async for item in execution:
        if isinstance(item, CellStarted | Display | CellError | Cleared):
            for event in output.end():  # half a character came before this
                yield results.output(event, node.clock.now())
            if isinstance(item, CellStarted):
                yield results.started(item.count)
            elif isinstance(item, CellError):
                raised = True
                yield results.error(item)
            elif isinstance(item, Display) and not item.update:  # updates are told by E2B neither
                yield results.result(item)
        else:
            for event in output.tell(item):
                yield results.output(event, node.clock.now())
    for event in output.end():
        yield results.output(event, node.clock.now())
    ended = results.end(await execution.outcome())
    if ended is not None and not raised:
        yield ended


def told(context: Context) -> dict[str, Any]:
    """A context as clients are told of it."""
    return {"id": context.id, "language": context.language, "cwd": context.cwd}
