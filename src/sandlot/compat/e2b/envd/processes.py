"""``process.Process``: commands and terminals, by the pid or the tag that E2B's clients know them by.

Laws:
- Who goes away from a command, or is cut off, leaves it running; it ends by its timeout, a signal, or by itself.
- Who connects to one is told what it writes from then on.
- Only what runs is found: a pid that was used before is whoever's it is now.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.rpc_routes import ConnectRpcCall, Told
from sandlot.compat.e2b.envd.schemas import (
    Input,
    Nothing,
    SelectMessage,
    Selector,
    SendInputMessage,
    SignalMessage,
    StartMessage,
    StreamInputMessage,
    UpdateMessage,
)
from sandlot.compat.e2b.translate import NAME
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, NotFoundError, TimeoutExceededError
from sandlot.model.executions import ExecutionOptions, Output, OutputGap, ProcessEvent, ProcessInfo, ProcessStarted
from sandlot.model.streams import Stream


async def start(call: ConnectRpcCall, asked: StartMessage) -> Told:
    """Run a command, and tell of it."""
    spec = translate.spec(asked, call.user, call.timeout_s)
    events = await call.node.processes.stream(call.principal, call.sandbox, spec, options=ExecutionOptions(origin=NAME), keeps_running=True)
    return Told(_told(events, spec.timeout_s, pty=spec.pty), events.aclose, translate.KEEPALIVE)


async def connect(call: ConnectRpcCall, asked: SelectMessage) -> Told:
    """Tell of a command that runs."""
    found = await find(call, asked.process)
    events = await call.node.processes.follow(
        call.principal, call.sandbox, found.process, stdout_from=found.stdout_bytes, stderr_from=found.stderr_bytes
    )
    return Told(_told(events, None, pty=found.pty), events.aclose, translate.KEEPALIVE)


async def listing(call: ConnectRpcCall, _asked: Nothing) -> Mapping[str, Any]:
    """All that run."""
    running = [info for info in await call.node.processes.list(call.principal, call.sandbox) if info.running]
    return {"processes": [translate.process(info) for info in running]}


async def send_input(call: ConnectRpcCall, asked: SendInputMessage) -> Mapping[str, Any]:
    """Write to a command's standard input, or type."""
    found = await find(call, asked.process)
    _check_kind(found, asked.input)
    await call.node.processes.write_stdin(call.principal, call.sandbox, found.process, _one(asked.input.data))
    return {}


async def stream_input(call: ConnectRpcCall, asked: AsyncIterator[StreamInputMessage]) -> None:
    """The same, piece by piece as it comes."""
    first = await anext(asked, None)
    if first is None or first.start is None:
        raise InvalidRequestError("The first message of an input has to say for which process it is.", hint="Send 'start' first.")
    found = await find(call, first.start.process)

    async def pieces() -> AsyncIterator[bytes]:
        async for message in asked:
            if message.start is not None:
                raise InvalidRequestError("An input is for one process.", hint="Send 'start' once.")
            if message.data is not None:
                _check_kind(found, message.data.input)
                yield message.data.input.data

    await call.node.processes.write_stdin(call.principal, call.sandbox, found.process, pieces())


async def close_stdin(call: ConnectRpcCall, asked: SelectMessage) -> Mapping[str, Any]:
    """End a command's standard input."""
    found = await find(call, asked.process)
    if found.pty:
        raise ConflictError("A terminal's input does not end.", code=ErrorCode.CONFLICT, hint="Type Ctrl+D (byte 4) in place of that.")
    await call.node.processes.close_stdin(call.principal, call.sandbox, found.process)
    return {}


async def send_signal(call: ConnectRpcCall, asked: SignalMessage) -> Mapping[str, Any]:
    """End a command."""
    number = translate.signal(asked.signal)
    found = await find(call, asked.process)
    if not await call.node.processes.signal(call.principal, call.sandbox, found.process, number):
        raise _absent(asked.process)
    return {}


async def update(call: ConnectRpcCall, asked: UpdateMessage) -> Mapping[str, Any]:
    """Give a terminal another size."""
    found = await find(call, asked.process)
    if asked.pty is not None:
        await call.node.terminals.resize(call.principal, call.sandbox, found.process, *translate.screen(asked.pty))
    return {}


async def find(call: ConnectRpcCall, selector: Selector) -> ProcessInfo:
    """The process that is meant.

    Raises:
        NotFoundError: ``process_not_found``: none that runs.
    """
    for info in await call.node.processes.list(call.principal, call.sandbox):
        if info.running and (info.pid == selector.pid or (selector.tag is not None and info.tag == selector.tag)):
            return info
    raise _absent(selector)


def _absent(selector: Selector) -> NotFoundError:
    named = f"pid {selector.pid}" if selector.tag is None else f"tag {selector.tag!r}"
    return NotFoundError(f"No process with {named} runs.", code=ErrorCode.PROCESS_NOT_FOUND, hint="It may have ended.")


def _check_kind(found: ProcessInfo, given: Input) -> None:
    if found.pty == (given.pty is None):
        raise InvalidRequestError(
            f"Process {found.pid} {'has a terminal' if found.pty else 'has no terminal'}.",
            hint=f"Send its input as '{'pty' if found.pty else 'stdin'}'.",
            fields={"field": "input"},
        )


async def _one(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _told(events: Stream[ProcessEvent], timeout_s: float | None, *, pty: bool) -> AsyncIterator[Mapping[str, Any]]:
    async for event in events:
        if isinstance(event, ProcessStarted):
            yield translate.started(event.pid)
        elif isinstance(event, Output):
            yield translate.output(event.channel, event.data, pty=pty)
        elif not isinstance(event, OutputGap):
            if event.outcome.reason == "timeout":
                raise _late(timeout_s)
            yield translate.ended(event.outcome)


def _late(timeout_s: float | None) -> TimeoutExceededError:
    return TimeoutExceededError(
        "The command was ended by its timeout." if timeout_s is None else f"The command was ended after {timeout_s:g} s, which was its timeout.",
        code=ErrorCode.TIMEOUT,
        hint="Give it longer, or 0 for no limit.",
    )
