"""RPCs as routes: what is asked is read and checked, what fails is told as Connect tells it.

Laws:
- A unary method that fails has a status; a stream's answer is 200 whatever happens, and says in its last envelope how it ended.
- ``Connect-Timeout-Ms`` bounds the work of a unary method, and how long a stream lasts; what is begun by ``Start`` is bounded by it as well.
- A client that goes away gives up its call, and nothing that goes on inside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from sandlot.compat.e2b import access
from sandlot.compat.e2b.envd import connect_rpc, errors, translate
from sandlot.compat.e2b.envd.schemas import Message
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError, TimeoutExceededError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import KIB, User
from sandlot.web import errors as web_errors
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import MAX_ERRORS
from sandlot.web.request_id import get_request_id
from sandlot.web.streaming import KeepAliveStreamResponse

FREE_BYTES = 64 * KIB
"""Of a message that waits for its end: more is counted (``model/buffer_budget.py``)."""

_Asked = TypeVar("_Asked", bound=Message)
_Done = TypeVar("_Done")
_log = structlog.get_logger("sandlot.http")


class ConnectRpcCall:
    """One call of a method.

    Args:
        request: As which it came.
        sandbox: Whose inside it is about.

    Raises:
        SandlotError: What it says of itself makes no sense.
    """

    __slots__ = ("node", "ping_s", "principal", "request", "sandbox", "timeout_s", "user")

    def __init__(self, request: Request, sandbox: SandboxId) -> None:
        self.request = request
        self.node: Node = get_node(request)
        self.principal: Principal = get_principal(request)
        self.sandbox = sandbox
        self.user: User = translate.basic_user(request.headers.get("authorization", ""))
        self.timeout_s = connect_rpc.timeout_s(request.headers.get("connect-timeout-ms"))
        self.ping_s = translate.ping_s(request.headers.get("keepalive-ping-interval", ""))


async def call_of(request: Request) -> ConnectRpcCall:
    """The call that a request is.

    Raises:
        SandlotError: What it says of itself makes no sense, or its sandbox is no more.
    """
    return ConnectRpcCall(request, (await access.sandbox_of(request)).id)


class Told:
    """What a stream tells.

    Args:
        messages: One after another; what they raise is how it ended.
        close: Called once in the end, whatever happened.
        beat: What is told where there is nothing to tell.
    """

    __slots__ = ("beat", "close", "messages")

    def __init__(self, messages: AsyncIterator[Mapping[str, Any]], close: Callable[[], Awaitable[None]], beat: Mapping[str, Any]) -> None:
        self.messages = messages
        self.close = close
        self.beat = beat


def unary(router: APIRouter, method: str, kind: type[_Asked], work: Callable[[ConnectRpcCall, _Asked], Awaitable[Mapping[str, Any]]]) -> None:
    """Give a router a method with one message each way.

    Args:
        router: It.
        method: The service and the method: its path.
        kind: What it takes.
        work: Does it.
    """

    async def answered(request: Request) -> Response:
        try:
            connect_rpc.check_type(request.headers.get("content-type", ""), connect_rpc.UNARY)
            raw = b"".join([piece async for piece in iter_body(request)])
            call = await call_of(request)
            async with _within(call.timeout_s):
                return _json(await cancel_on_disconnect(request, _done(work(call, parsed(kind, raw or b"{}")))), 200)
        except SandlotError as error:
            web_errors.record_failure(request.scope, error)
            return _json(errors.rpc_error(error), errors.status(error))

    router.add_api_route(method, answered, methods=["POST"])


def streaming(
    router: APIRouter, method: str, kind: type[_Asked], work: Callable[[ConnectRpcCall, _Asked], Awaitable[Told]], *, bounded: bool = True
) -> None:
    """Give a router a method that answers with a stream.

    Args:
        router: It.
        method: The service and the method: its path.
        kind: What it takes, once.
        work: Begins it.
        bounded: Whether the timeout ends the stream; otherwise ``work`` sees to that.
    """

    async def answered(request: Request) -> Response:
        try:
            connect_rpc.check_type(request.headers.get("content-type", ""), connect_rpc.STREAM)
            asked = [message async for message in messages(request)]
            call = await call_of(request)
            if len(asked) != 1:
                raise InvalidRequestError(f"This method takes one message, not {len(asked)}.", hint="Send one envelope.")
            told = await cancel_on_disconnect(request, _done(work(call, parsed(kind, asked[0]))))
        except SandlotError as error:
            web_errors.record_failure(request.scope, error)
            return Response(connect_rpc.end(errors.rpc_error(error)), media_type=connect_rpc.STREAM)
        pieces = _enveloped(request, told.messages, call.timeout_s if bounded else None)
        return KeepAliveStreamResponse(
            pieces, told.close, media_type=connect_rpc.STREAM, keep_alive=connect_rpc.envelope(told.beat), keep_alive_s=call.ping_s
        )

    router.add_api_route(method, answered, methods=["POST"])


def taking(router: APIRouter, method: str, kind: type[_Asked], work: Callable[[ConnectRpcCall, AsyncIterator[_Asked]], Awaitable[None]]) -> None:
    """Give a router a method that takes a stream, and answers once.

    Args:
        router: It.
        method: The service and the method: its path.
        kind: What it takes, again and again.
        work: Does it; iterates to the end.
    """

    @streams_body
    async def answered(request: Request) -> Response:
        try:
            connect_rpc.check_type(request.headers.get("content-type", ""), connect_rpc.STREAM)
            call = await call_of(request)
            async with aclosing(messages(request, call.node.buffers)) as came, _within(call.timeout_s):
                await cancel_on_hangup(request, _done(work(call, (parsed(kind, raw) async for raw in came))))
        except SandlotError as error:
            web_errors.record_failure(request.scope, error)
            return Response(connect_rpc.end(errors.rpc_error(error)), media_type=connect_rpc.STREAM)
        return Response(connect_rpc.envelope({}) + connect_rpc.end(), media_type=connect_rpc.STREAM)

    router.add_api_route(method, answered, methods=["POST"])


async def messages(request: Request, buffers: BufferBudget | None = None) -> AsyncGenerator[bytes]:
    """The messages of a request's body as they come.

    Args:
        request: Its body is envelopes.
        buffers: Where the memory for what waits of a message is taken from; None where the frame counts the whole body.

    Raises:
        SandlotError: It is none, is cut, or is too large.
    """
    envelopes, taken = connect_rpc.ConnectRpcDecoder(), 0
    try:
        async for piece in iter_body(request):
            whole = envelopes.feed(piece)
            more = max(0, envelopes.held_bytes - FREE_BYTES) - taken
            if buffers is not None and more > 0:
                buffers.take(more)
                taken += more
            for message in whole:
                yield message
        envelopes.finish()
    finally:
        if buffers is not None:
            buffers.give(taken)


def parsed(kind: type[_Asked], raw: bytes) -> _Asked:
    """A message out of JSON.

    Raises:
        InvalidRequestError: It is none.
    """
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise web_errors.validation_error([{**each, "loc": ("body", *each["loc"])} for each in found[:MAX_ERRORS]]) from None


async def _enveloped(request: Request, told: AsyncIterator[Mapping[str, Any]], timeout_s: float | None) -> AsyncIterator[bytes]:
    """A stream's messages, and how it ended."""
    loop = asyncio.get_running_loop()
    until_s = None if not timeout_s else loop.time() + timeout_s
    source = aiter(told)
    try:
        while True:
            async with asyncio.timeout_at(until_s):
                message = await anext(source, None)
            if message is None:
                break
            yield connect_rpc.envelope(message)
    except TimeoutError:
        yield connect_rpc.end(errors.rpc_error(_late(timeout_s)))
    except SandlotError as error:
        web_errors.record_failure(request.scope, error)
        yield connect_rpc.end(errors.rpc_error(error))
    except Exception:  # noqa: BLE001 - the client is told that there was one
        _log.exception("request.defect", request=get_request_id(request.scope))
        web_errors.record_failure(request.scope, defect := web_errors.internal_error(get_request_id(request.scope)))
        yield connect_rpc.end(errors.rpc_error(defect))
    else:
        yield connect_rpc.end()


@asynccontextmanager
async def _within(timeout_s: float | None) -> AsyncIterator[None]:
    """Around work that is given up when its time is over; None or 0 is never."""
    try:
        async with asyncio.timeout(timeout_s or None):
            yield
    except TimeoutError:
        raise _late(timeout_s) from None


def _late(timeout_s: float | None) -> TimeoutExceededError:
    return TimeoutExceededError(
        f"It was not done within {timeout_s or 0:g} s, which was its timeout.", code=ErrorCode.TIMEOUT, hint="Give it longer, or 0 for no limit."
    )


async def _done(work: Awaitable[_Done]) -> _Done:
    return await work


def _json(told: Mapping[str, Any], status: int) -> Response:
    return Response(connect_rpc.envelope(told)[connect_rpc.HEAD_BYTES :], status_code=status, media_type=connect_rpc.UNARY)
