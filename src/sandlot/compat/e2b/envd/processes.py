"""Methods of ``process.Process``: commands and terminals, which E2B's clients select by pid or tag.

Invariants:
- If a client disconnects, its command keeps running. A command ends by its timeout, by a signal, or by itself.
- A client that connects to a command receives the output from then on.
- Only running processes are found, because a pid may be used again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from sandlot.compat.common import single_chunk
from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.rpc_routes import ConnectRpcCall, RpcStream
from sandlot.compat.e2b.envd.schemas import (
    EmptyMessage,
    Input,
    SelectMessage,
    Selector,
    SendInputMessage,
    SignalMessage,
    StartMessage,
    StreamInputMessage,
    UpdateMessage,
)
from sandlot.compat.e2b.translate import VENDOR
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, TimeoutExceededError
from sandlot.model.executions import ExecutionOptions, Output, OutputGap, ProcessEvent, ProcessInfo, ProcessStarted
from sandlot.model.streams import Stream


async def start(call: ConnectRpcCall, message: StartMessage) -> RpcStream:
    """Start a command and stream its events."""
    spec = translate.process_spec(message, call.user, call.home, call.folder, call.timeout_s)
    events = await call.node.processes.stream(call.principal, call.sandbox, spec, options=ExecutionOptions(origin=VENDOR), keeps_running=True)
    return RpcStream(_messages(events, spec.timeout_s, pty=spec.pty), events.aclose, translate.KEEPALIVE)


async def connect(call: ConnectRpcCall, message: SelectMessage) -> RpcStream:
    """Stream the events of a running command."""
    info = await find(call, message.process)
    events = await call.node.processes.follow(
        call.principal, call.sandbox, info.process, stdout_from=info.stdout_bytes, stderr_from=info.stderr_bytes
    )
    return RpcStream(_messages(events, None, pty=info.pty), events.aclose, translate.KEEPALIVE)


async def list_processes(call: ConnectRpcCall, _message: EmptyMessage) -> Mapping[str, Any]:
    """List the running processes."""
    known = await call.node.processes.list(call.principal, call.sandbox)
    return {"processes": [translate.process(info) for info in known if info.running]}


async def send_input(call: ConnectRpcCall, message: SendInputMessage) -> Mapping[str, Any]:
    """Write to the standard input or the terminal of a process."""
    info = await find(call, message.process)
    _check_input(info, message.input)
    await call.node.processes.write_stdin(call.principal, call.sandbox, info.process, single_chunk(message.input.data))
    return {}


async def stream_input(call: ConnectRpcCall, messages: AsyncIterator[StreamInputMessage]) -> None:
    """Write a stream to the standard input or the terminal of a process."""
    first = await anext(messages, None)
    if first is None or first.start is None:
        raise InvalidRequestError("The first message of an input does not name a process.", hint="Send 'start' first.")
    info = await find(call, first.start.process)

    async def chunks() -> AsyncIterator[bytes]:
        async for message in messages:
            if message.start is not None:
                raise InvalidRequestError("The input names a process twice.", hint="Send 'start' once.")
            if message.data is not None:
                _check_input(info, message.data.input)
                yield message.data.input.data

    await call.node.processes.write_stdin(call.principal, call.sandbox, info.process, chunks())


async def close_stdin(call: ConnectRpcCall, message: SelectMessage) -> Mapping[str, Any]:
    """Close the standard input of a process."""
    info = await find(call, message.process)
    if info.pty:
        raise ConflictError("The input of a terminal cannot be closed.", code=ErrorCode.CONFLICT, hint="Send Ctrl+D (byte 4) instead.")
    await call.node.processes.close_stdin(call.principal, call.sandbox, info.process)
    return {}


async def send_signal(call: ConnectRpcCall, message: SignalMessage) -> Mapping[str, Any]:
    """Send a signal to a process."""
    number = translate.signal(message.signal)
    info = await find(call, message.process)
    if not await call.node.processes.signal(call.principal, call.sandbox, info.process, number):
        raise _process_not_found(message.process)
    return {}


async def update(call: ConnectRpcCall, message: UpdateMessage) -> Mapping[str, Any]:
    """Change the size of a terminal."""
    info = await find(call, message.process)
    if message.pty is not None:
        await call.node.terminals.resize(call.principal, call.sandbox, info.process, *translate.terminal_size(message.pty))
    return {}


async def find(call: ConnectRpcCall, selector: Selector) -> ProcessInfo:
    """Return a running process.

    Raises:
        NotFoundError: No such process is running (code ``process_not_found``).
    """
    for info in await call.node.processes.list(call.principal, call.sandbox):
        if info.running and (info.pid == selector.pid or (selector.tag is not None and info.tag == selector.tag)):
            return info
    raise _process_not_found(selector)


def _process_not_found(selector: Selector) -> NotFoundError:
    shown = f"pid {selector.pid}" if selector.tag is None else f"tag {selector.tag!r}"
    return NotFoundError(f"No process with {shown} is running.", code=ErrorCode.PROCESS_NOT_FOUND, hint="List the running processes.")


def _check_input(info: ProcessInfo, given: Input) -> None:
    if info.pty == (given.pty is None):
        raise InvalidRequestError(
            f"Process {info.pid} has {'a' if info.pty else 'no'} terminal.",
            hint=f"Send the input as '{'pty' if info.pty else 'stdin'}'.",
            fields={"field": "input"},
        )


async def _messages(events: Stream[ProcessEvent], timeout_s: float | None, *, pty: bool) -> AsyncIterator[Mapping[str, Any]]:
    async for event in events:
        if isinstance(event, ProcessStarted):
            yield translate.started(event.pid)
        elif isinstance(event, Output):
            yield translate.output(event.channel, event.data, pty=pty)
        elif not isinstance(event, OutputGap):
            if event.outcome.timed_out:
                raise _timeout_error(timeout_s)
            yield translate.ended(event.outcome)


def _timeout_error(timeout_s: float | None) -> TimeoutExceededError:
    duration = "" if timeout_s is None else f" of {timeout_s:g} s"
    return TimeoutExceededError(
        f"The command was killed after its timeout{duration}.", code=ErrorCode.TIMEOUT, hint="Pass a longer timeout, or 0 for none."
    )
