"""Sandboxes of the PandaStack API, and commands, code and logs in them: calls of several node operations in order.

Invariants:
- A sandbox that has ended is not found, but to kill it again is not an error.
- If a client disconnects, its command is killed.
- A stream ends with one exit or one error. If the sandbox or the service ends first, the stream has neither: the outcome of the command is unknown.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import structlog
from starlette.requests import Request

from sandlot.compat.common import find_live_sandbox, iter_snapshots, single_chunk
from sandlot.compat.pandastack import exec_protocol, translate
from sandlot.compat.pandastack.exec_protocol import Command, TextDecoder
from sandlot.compat.pandastack.schemas import (
    CodeResponse,
    CreateSandboxRequest,
    ExecRequest,
    ExecResponse,
    ForkTreeResponse,
    LifecycleResponse,
    PromoteRequest,
    PromoteResponse,
    RunCodeRequest,
    SandboxResponse,
    SnapshotResponse,
    TemplateResponse,
    UpdateLifecycleRequest,
)
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, NotFoundError, SandboxEndedError, SandlotError, UnavailableError
from sandlot.model.executions import ExecutionOptions, Output, OutputGap, ProcessEnded, ProcessEvent, ProcessOutcome
from sandlot.model.history import LOG_CHANNELS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ForkParams
from sandlot.model.specs import DEFAULT_TEMPLATE, KIB, MAX_TIMEOUT_S, CellSpec, User
from sandlot.model.streams import Stream
from sandlot.model.templates import DEFAULT_TEMPLATE_TAG, TemplateRecord
from sandlot.web import errors
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.request_id import get_request_id
from sandlot.web.streaming import KEEP_ALIVE, SSE_MEDIA_TYPE, STREAM_NAMES, KeepAliveStreamResponse

MAX_LINE_CHARS: Final = 64 * KIB
"""Maximum number of characters of a followed log line. Longer lines are split."""
MAX_TEMPLATES: Final = 1000
"""Number of templates that are read at once."""

_UNBUFFERED: Final = {"X-Accel-Buffering": "no"}
_log = structlog.get_logger("sandlot.compat")


# -- sandboxes ------------------------------------------------------------------------------------------------------


async def create_sandbox(node: Node, principal: Principal, body: CreateSandboxRequest) -> SandboxResponse:
    """Create a sandbox from a template or a snapshot. The client names a template also for a snapshot, which has a template of its own.

    Raises:
        SandlotError: The sandbox could not be created; then nothing is left of it.
    """
    params = translate.create_params(body, principal)
    if params.snapshot is not None:
        await node.templates.find(principal, params.template or DEFAULT_TEMPLATE)
    created = await node.sandboxes.create(principal, params)
    return translate.sandbox_response(created, (created.as_of - created.created_at).total_seconds())


async def update_lifecycle(node: Node, principal: Principal, sandbox: str, body: UpdateLifecycleRequest) -> LifecycleResponse:
    """Change or remove the deadline of a sandbox.

    Raises:
        InvalidRequestError: A value is out of bounds, or a deadline is given for a persistent sandbox.
        LimitError: The quota does not allow the deadline (code ``quota_exceeded``).
    """
    found = await find_live_sandbox(node, principal, sandbox)
    params = translate.update_params(found, body, principal.quota)
    return translate.lifecycle_response(await node.sandboxes.update(principal, found.id, params))


async def fork(node: Node, principal: Principal, sandbox: str, count: int, metadata: Mapping[str, str] | None) -> ForkTreeResponse:
    """Fork a sandbox into ``count`` children, or none. The children share the volumes of their parent, as with the vendor.

    Args:
        node: Node that has the sandbox.
        principal: Caller.
        sandbox: Id of the parent.
        count: Number of children.
        metadata: Metadata of the children. None: the metadata of the parent.
    """
    parent = await find_live_sandbox(node, principal, sandbox)
    tree = f"tree-{secrets.token_hex(8)}"
    params = ForkParams(count=count, metadata=translate.fork_metadata(parent, metadata, tree), share_volumes=True)
    children = await node.sandboxes.fork(principal, parent.id, params)
    return ForkTreeResponse(tree_id=tree, parent_id=parent.id, children=[translate.sandbox_response(child) for child in children])


async def promote(node: Node, principal: Principal, sandbox: str, body: PromoteRequest) -> PromoteResponse:
    """Keep a fork. With ``cleanup_siblings``, kill the other forks of its tree and their descendants.

    Raises:
        ConflictError: The sandbox is not a fork.
        InvalidRequestError: The sandbox belongs to another tree.
    """
    found = await find_live_sandbox(node, principal, sandbox)
    if found.spec.parent is None:
        raise translate.not_a_fork(found)
    tree = translate.tree_of(found)
    if body.tree_id not in {None, tree}:
        raise InvalidRequestError(
            f"Sandbox {found.id} belongs to another tree.", hint=f"Pass its tree_id, which is {tree}.", fields={"field": "tree_id"}
        )
    if not body.cleanup_siblings:
        return PromoteResponse(winner=found.id, tree_id=tree, deleted=[], failures={})
    among = {translate.TREE_KEY: tree} if translate.TREE_KEY in found.metadata else {}
    promotion = await node.sandboxes.promote(principal, found.id, among=among)
    failures = {str(id_): reason for id_, reason in promotion.failed.items()}
    return PromoteResponse(winner=found.id, tree_id=tree, deleted=list(promotion.ended), failures=failures)


async def list_snapshots(node: Node, principal: Principal, sandbox: str | None) -> list[SnapshotResponse]:
    """Return all snapshots, or those of one sandbox, newest first."""
    records = [record async for record in iter_snapshots(node, principal) if sandbox in {None, record.spec.id}]
    return [translate.snapshot_response(record) for record in reversed(records)]


# -- commands and code ----------------------------------------------------------------------------------------------


async def execute(node: Node, principal: Principal, sandbox: str, body: ExecRequest) -> ExecResponse:
    """Run a command to its end.

    Raises:
        TimeoutExceededError: The command exceeded its timeout and was killed.
        SandlotError: The command could not be run. A command that fails is not an error.
    """
    async with _prepare(node, principal, sandbox, body, exec_protocol.DEFAULT_EXEC_S) as command:
        result = await node.processes.run(principal, sandbox, command.spec(), options=_options(command))
    if result.outcome.timed_out:
        raise exec_protocol.timeout_error(command.timeout_s)
    return exec_protocol.exec_response(result)


async def stream(request: Request, sandbox: str, body: ExecRequest) -> KeepAliveStreamResponse:
    """Run a command and stream its output.

    Raises:
        SandlotError: The command could not be started.
    """
    node, principal = get_node(request), get_principal(request)
    async with AsyncExitStack() as stack:
        command = await stack.enter_async_context(_prepare(node, principal, sandbox, body, exec_protocol.DEFAULT_STREAM_S))
        events = await node.processes.stream(principal, sandbox, command.spec(), options=_options(command))
        stack.push_async_callback(events.aclose)
        close = stack.pop_all().aclose
    content = _command_events(request, events, command)
    return KeepAliveStreamResponse(content, close, media_type=SSE_MEDIA_TYPE, headers=_UNBUFFERED, keep_alive=KEEP_ALIVE)


async def run_code(node: Node, principal: Principal, sandbox: str, session: str, body: RunCodeRequest) -> CodeResponse:
    """Run code in a session.

    Raises:
        NotFoundError: There is no such session (code ``context_not_found``).
        TimeoutExceededError: The code exceeded its timeout and was interrupted. Its variables stay.
    """
    timeout_s = body.timeout_ms / 1000 if body.timeout_ms else await _remaining_s(node, principal, sandbox, exec_protocol.DEFAULT_EXEC_S)
    cell = CellSpec(body.code, language=None, context=session, timeout_s=timeout_s)
    result = await node.code.run(principal, sandbox, cell, ExecutionOptions(origin=translate.VENDOR))
    return exec_protocol.code_response(result, timeout_s)


async def read_logs(node: Node, principal: Principal, sandbox: str, channel: str) -> str:
    """Return the output of all runs of a sandbox as one text."""
    entries = (await node.history.logs(principal, sandbox, LOG_CHANNELS[channel])).items
    return "".join(entry.text if entry.text.endswith("\n") else f"{entry.text}\n" for entry in entries)


async def follow_logs(node: Node, principal: Principal, sandbox: str, channel: str) -> KeepAliveStreamResponse:
    """Stream the past and future output of all runs, line by line, until the sandbox ends."""
    items = await node.history.follow_logs(principal, sandbox, LOG_CHANNELS[channel])
    return KeepAliveStreamResponse(_log_events(items), items.aclose, media_type=SSE_MEDIA_TYPE, headers=_UNBUFFERED, keep_alive=KEEP_ALIVE)


async def _remaining_s(node: Node, principal: Principal, sandbox: str, default_s: float) -> float:
    """Wake a sandbox, and return the default timeout less the time that this has taken."""
    began_s = time.monotonic()
    await node.sandboxes.ensure_running(principal, sandbox)
    return exec_protocol.remaining_s(default_s, time.monotonic() - began_s)


@asynccontextmanager
async def _prepare(node: Node, principal: Principal, sandbox: str, body: ExecRequest, default_s: float) -> AsyncIterator[Command]:
    """Yield a command, whose file is written before and deleted after the context."""
    timeout_s = min(body.timeout_seconds or await _remaining_s(node, principal, sandbox, default_s), MAX_TIMEOUT_S)
    command = exec_protocol.plan_command(body.cmd, timeout_s, secrets.token_hex(8))
    if command.file is None:
        yield command
        return
    await node.files.write(principal, sandbox, command.file, single_chunk(command.content), user=User.ROOT, mode=0o600)
    try:
        yield command
    finally:
        with suppress(SandlotError):
            await node.files.delete(principal, sandbox, command.file, user=User.ROOT)


async def _command_events(request: Request, events: Stream[ProcessEvent], command: Command) -> AsyncIterator[bytes]:
    decoders = {name: TextDecoder() for name in STREAM_NAMES.values()}
    try:
        async for event in events:
            if isinstance(event, Output | OutputGap):
                name = STREAM_NAMES[event.channel]
                if isinstance(event, OutputGap):
                    text = decoders[name].text(b"", last=True) + exec_protocol.gap_line(event.bytes)
                else:
                    text = decoders[name].text(event.data)
                if text:
                    yield exec_protocol.sse_event(name, {"chunk": text})
            elif isinstance(event, ProcessEnded):
                for content in _last_events(event.outcome, decoders, command.timeout_s):
                    yield content
    except (SandboxEndedError, UnavailableError) as error:
        errors.record_failure(request.scope, error)
        yield exec_protocol.sse_comment(error)
    except SandlotError as error:
        errors.record_failure(request.scope, error)
        yield exec_protocol.sse_event("error", {"error": str(error)})
    except Exception:  # noqa: BLE001 - reported to the client without details
        _log.exception("request.defect", request=get_request_id(request.scope))
        errors.record_failure(request.scope, defect := errors.internal_error(get_request_id(request.scope)))
        yield exec_protocol.sse_event("error", {"error": str(defect)})


def _last_events(outcome: ProcessOutcome, decoders: Mapping[str, TextDecoder], timeout_s: float) -> Iterator[bytes]:
    for name, decoder in decoders.items():
        if rest := decoder.text(b"", last=True):
            yield exec_protocol.sse_event(name, {"chunk": rest})
    if outcome.timed_out:
        raise exec_protocol.timeout_error(timeout_s)
    if note := exec_protocol.kill_note(outcome.reason):
        yield exec_protocol.sse_event("stderr", {"chunk": note})
    yield exec_protocol.sse_event("exit", {"exit_code": outcome.exit_code})


async def _log_events(items: Stream[LogEntry | LogOutput | LogGap | LogEnd]) -> AsyncIterator[bytes]:
    """Yield lines as events. An incomplete line is sent at the end of its run, or when it is too long."""
    incomplete: dict[tuple[str, int], str] = {}
    with suppress(UnavailableError):  # the service stops: the stream ends
        async for item in items:
            if isinstance(item, LogEnd):
                for key in [key for key in incomplete if key[0] == item.execution]:
                    yield _line_event(incomplete.pop(key))
                continue
            key = (item.execution, item.channel)
            text = exec_protocol.gap_line(item.bytes) if isinstance(item, LogGap) else item.text
            *lines, tail = (incomplete.pop(key, "") + text).split("\n")
            for line in lines:
                yield _line_event(line)
            if len(tail) > MAX_LINE_CHARS or (tail and getattr(item, "end", 0) is None):
                yield _line_event(tail)
            elif tail:
                incomplete[key] = tail
    for tail in incomplete.values():
        yield _line_event(tail)


def _line_event(text: str) -> bytes:
    return exec_protocol.sse_event("line", {"line": text})


def _options(command: Command) -> ExecutionOptions:
    return ExecutionOptions(origin=translate.VENDOR, argv=command.logged_argv)


# -- templates ------------------------------------------------------------------------------------------------------


async def list_templates(node: Node, principal: Principal) -> list[TemplateResponse]:
    """Return the templates of the key and those of the service, by name. A template of the key replaces one of the service with the same name."""
    own: dict[str, TemplateResponse] = {}
    before = None
    while True:
        page = await node.template_builds.list(principal, before=before, limit=MAX_TEMPLATES)
        for record in page.items:
            if record.owner == principal.owner:
                own[record.name] = await _own_template(node, principal, record)
        if not page.more:
            break
        before = Position(page.items[-1].created_at, page.items[-1].id)
    others = {template.name: translate.template_response(template) for template in await node.templates.list(principal)}
    return [template for _, template in sorted((others | own).items())]


async def find_template(node: Node, principal: Principal, name: str) -> TemplateResponse:
    """Return a template by its name.

    Raises:
        NotFoundError: The key has no such template, nor has the service (code ``template_not_found``).
    """
    try:
        return await _own_template(node, principal, await node.template_builds.get(principal, name))
    except NotFoundError:
        await node.templates.find(principal, name)
    return next(translate.template_response(each) for each in await node.templates.list(principal) if each.name == name)


async def _own_template(node: Node, principal: Principal, record: TemplateRecord) -> TemplateResponse:
    build = record.tags.get(DEFAULT_TEMPLATE_TAG)
    root = None if build is None else (await node.template_builds.get_build(principal, build)).root
    return translate.own_template_response(record, root)
