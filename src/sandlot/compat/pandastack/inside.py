"""What is done inside a sandbox: commands, code in sessions, files, and what its runs wrote.

Laws:
- A client that goes away takes its command along, and interrupts its code.
- A stream of a command has exactly one exit, or says why it has none; where its sandbox ends it has neither, and its client says that the
  outcome is not known.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import structlog
from starlette.requests import Request

from sandlot.compat.common import single_chunk
from sandlot.compat.pandastack import exec_protocol, translate
from sandlot.compat.pandastack.exec_protocol import Command, Decoder
from sandlot.compat.pandastack.schemas import EntryAnswer, ExecAnswer, ExecBody, RunAnswer, RunBody
from sandlot.core.node import Node
from sandlot.model import streams
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, LimitError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import ExecutionOptions, Output, OutputGap, ProcessEnded, ProcessEvent, ProcessOutcome
from sandlot.model.history import LOG_CHANNELS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.specs import KIB, MAX_TIMEOUT_S, CellSpec, User
from sandlot.web import errors
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.request_id import get_request_id
from sandlot.web.streaming import KEEP_ALIVE, SSE_MEDIA_TYPE, STREAM_NAMES, KeepAliveStreamResponse

MOST_ENTRIES = 20_000
"""Of one folder that is listed."""
LONGEST_LINE = 64 * KIB
"""Characters that one who follows is told at once, where no line ends."""

_UNBUFFERED = {"X-Accel-Buffering": "no"}
_log = structlog.get_logger("sandlot.compat")


async def execute(node: Node, principal: Principal, sandbox: str, body: ExecBody) -> ExecAnswer:
    """Run a command to its end.

    Raises:
        TimeoutExceededError: It took too long, and was ended.
        SandlotError: It could not be run. A command that fails is no error.
    """
    async with _ready(node, principal, sandbox, body, exec_protocol.DEFAULT_EXEC_S) as command:
        done = await node.processes.run(principal, sandbox, command.spec(), options=_label(command))
    if done.outcome.reason == "timeout":
        raise exec_protocol.late(command.timeout_s)
    return exec_protocol.exec_answer(done)


async def stream(request: Request, sandbox: str, body: ExecBody) -> KeepAliveStreamResponse:
    """Run a command and tell what it writes as it writes it.

    Raises:
        SandlotError: It could not be started.
    """
    node, principal = get_node(request), get_principal(request)
    async with AsyncExitStack() as stack:
        command = await stack.enter_async_context(_ready(node, principal, sandbox, body, exec_protocol.DEFAULT_STREAM_S))
        events = await node.processes.stream(principal, sandbox, command.spec(), options=_label(command))
        stack.push_async_callback(events.aclose)
        close = stack.pop_all().aclose
    return KeepAliveStreamResponse(_told(request, events, command), close, media_type=SSE_MEDIA_TYPE, headers=_UNBUFFERED, keep_alive=KEEP_ALIVE)


async def run_cell(node: Node, principal: Principal, sandbox: str, session: str, body: RunBody) -> RunAnswer:
    """Run code in a session.

    Raises:
        NotFoundError: ``context_not_found``.
        TimeoutExceededError: It took too long, and was interrupted; variables stay.
    """
    timeout_s = body.timeout_ms / 1000 if body.timeout_ms else await _left_s(node, principal, sandbox, exec_protocol.DEFAULT_EXEC_S)
    cell = CellSpec(body.code, language=None, context=session, timeout_s=timeout_s)
    return exec_protocol.run_answer(await node.code.run(principal, sandbox, cell, ExecutionOptions(origin=translate.NAME)), timeout_s)


async def folder(node: Node, principal: Principal, sandbox: str, path: str) -> list[EntryAnswer]:
    """All that is in a folder, by name.

    Raises:
        NotFoundError: ``path_not_found``.
        LimitError: ``too_large``: it has more than one answer should.
    """
    found: list[EntryAnswer] = []
    more = True
    while more:
        listed = await node.files.list(principal, sandbox, path, user=User.ROOT, offset=len(found))
        found += map(translate.entry, listed.entries)
        if len(found) > MOST_ENTRIES:
            raise LimitError(
                f"The folder has more than {MOST_ENTRIES} entries.", code=ErrorCode.TOO_LARGE, hint="Look through it with a command, such as find."
            )
        more = listed.more and bool(listed.entries)
    return found


async def logs(node: Node, principal: Principal, sandbox: str, stream_: str) -> str:
    """What the runs of a sandbox wrote, as one text."""
    entries = (await node.history.logs(principal, sandbox, LOG_CHANNELS[stream_])).items
    return "".join(entry.text if entry.text.endswith("\n") else f"{entry.text}\n" for entry in entries)


async def follow(node: Node, principal: Principal, sandbox: str, stream_: str) -> KeepAliveStreamResponse:
    """What they wrote, and what they write, line by line, until the sandbox ends."""
    items = await node.history.follow_logs(principal, sandbox, LOG_CHANNELS[stream_])
    return KeepAliveStreamResponse(_lines(items), items.aclose, media_type=SSE_MEDIA_TYPE, headers=_UNBUFFERED, keep_alive=KEEP_ALIVE)


async def _left_s(node: Node, principal: Principal, sandbox: str, default_s: float) -> float:
    """What a command has that says none, once its sandbox is awake."""
    began_s = time.monotonic()
    await node.sandboxes.ensure_running(principal, sandbox)
    return exec_protocol.left_s(default_s, time.monotonic() - began_s)


@asynccontextmanager
async def _ready(node: Node, principal: Principal, sandbox: str, body: ExecBody, default_s: float) -> AsyncIterator[Command]:
    """A command, its file inside where it needs one."""
    timeout_s = min(body.timeout_seconds or await _left_s(node, principal, sandbox, default_s), MAX_TIMEOUT_S)
    command = exec_protocol.command(body.cmd, timeout_s, secrets.token_hex(8))
    if command.file is None:
        yield command
        return
    await node.files.write(principal, sandbox, command.file, single_chunk(command.content), user=User.ROOT, mode=0o600)
    try:
        yield command
    finally:
        with suppress(SandlotError):
            await node.files.delete(principal, sandbox, command.file, user=User.ROOT)


async def _told(request: Request, events: streams.Stream[ProcessEvent], command: Command) -> AsyncIterator[bytes]:
    """The events of a command."""
    decoders = {name: Decoder() for name in STREAM_NAMES.values()}
    try:
        async for event in events:
            if isinstance(event, Output | OutputGap):
                name = STREAM_NAMES[event.channel]
                text = f"[... {event.bytes} bytes omitted ...]\n" if isinstance(event, OutputGap) else decoders[name].text(event.data)
                if text:
                    yield exec_protocol.event(name, {"chunk": text})
            elif isinstance(event, ProcessEnded):
                for told in _end(event.outcome, decoders, command.timeout_s):
                    yield told
    except (SandboxEndedError, UnavailableError) as error:
        errors.record_failure(request.scope, error)
        yield exec_protocol.broke_off(error)
    except SandlotError as error:
        errors.record_failure(request.scope, error)
        yield exec_protocol.event("error", {"error": str(error)})
    except Exception:  # noqa: BLE001 - the client is told that there was one
        _log.exception("request.defect", request=get_request_id(request.scope))
        errors.record_failure(request.scope, defect := errors.internal_error(get_request_id(request.scope)))
        yield exec_protocol.event("error", {"error": str(defect)})


def _end(outcome: ProcessOutcome, decoders: Mapping[str, Decoder], timeout_s: float) -> Iterator[bytes]:
    """The last events of a command."""
    for name, decoder in decoders.items():
        if rest := decoder.text(b"", last=True):
            yield exec_protocol.event(name, {"chunk": rest})
    if outcome.reason == "timeout":
        raise exec_protocol.late(timeout_s)
    if note := exec_protocol.note_of(outcome.reason):
        yield exec_protocol.event("stderr", {"chunk": note})
    yield exec_protocol.event("exit", {"exit_code": outcome.exit_code})


async def _lines(items: streams.Stream[LogEntry | LogOutput | LogGap | LogEnd]) -> AsyncIterator[bytes]:
    """Lines as events; what has no end is told when its run ends, or when it is long."""
    rest: dict[tuple[str, int], str] = {}
    with suppress(UnavailableError):  # the service stops: the stream ends
        async for item in items:
            if isinstance(item, LogEnd):
                for key in [key for key in rest if key[0] == item.execution]:
                    yield _line(rest.pop(key))
                continue
            key = (item.execution, item.channel)
            text = f"[... {item.bytes} bytes omitted ...]\n" if isinstance(item, LogGap) else item.text
            *lines, tail = (rest.pop(key, "") + text).split("\n")
            for line in lines:
                yield _line(line)
            if len(tail) > LONGEST_LINE or (tail and getattr(item, "end", 0) is None):
                yield _line(tail)
            elif tail:
                rest[key] = tail
    for tail in rest.values():
        yield _line(tail)


def _line(text: str) -> bytes:
    return exec_protocol.event("line", {"line": text})


def _label(command: Command) -> ExecutionOptions:
    return ExecutionOptions(origin=translate.NAME, argv=command.said)
