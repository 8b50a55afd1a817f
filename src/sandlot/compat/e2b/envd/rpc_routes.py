"""Routes for Connect RPCs: read and check messages, call the method, and report errors as Connect does.

Invariants:
- The error of a unary method has a status. A stream has status 200 in any case, and its last envelope states how it ended.
- ``Connect-Timeout-Ms`` bounds the work of a unary method and the duration of a stream; ``Start`` also bounds its process.
- If a client disconnects, its call is cancelled; processes in the sandbox continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from sandlot.compat.e2b import access
from sandlot.compat.e2b.envd import connect_rpc, errors, translate
from sandlot.compat.e2b.envd.homes import find_home
from sandlot.compat.e2b.envd.schemas import Message
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError, TimeoutExceededError
from sandlot.model.ids import SandboxId
from sandlot.model.paths import WORKSPACE
from sandlot.model.specs import KIB, User
from sandlot.web import errors as web_errors
from sandlot.web.body_limits import streams_request_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.json_body import get_json_parser
from sandlot.web.models import MAX_ERRORS
from sandlot.web.request_id import get_request_id
from sandlot.web.streaming import KeepAliveStreamResponse

UNCOUNTED_BYTES: Final = 64 * KIB
"""Bytes of an incomplete message that are not counted against the buffer budget (``model/buffer_budget.py``)."""

_Message = TypeVar("_Message", bound=Message)
_Result = TypeVar("_Result")
_log = structlog.get_logger("sandlot.http")


class ConnectRpcCall:
    """One call of a method.

    Args:
        request: Request of the call.
        sandbox: Sandbox of the call.
        user: User of the call.
        home: Home directory of the user.
        folder: Working directory of processes.

    Raises:
        SandlotError: A header of the request is invalid.
    """

    __slots__ = ("folder", "home", "node", "ping_s", "principal", "request", "sandbox", "timeout_s", "user")

    def __init__(self, request: Request, sandbox: SandboxId, user: User, home: str, folder: str) -> None:
        self.request = request
        self.node: Node = get_node(request)
        self.principal: Principal = get_principal(request)
        self.sandbox = sandbox
        self.user = user
        self.home = home
        self.folder = folder
        self.timeout_s = connect_rpc.timeout_s(request.headers.get("connect-timeout-ms"))
        self.ping_s = translate.ping_s(request.headers.get("keepalive-ping-interval", ""))


@dataclass(frozen=True, slots=True)
class RpcStream:
    """Messages that a method streams to the client.

    Args:
        messages: The messages. An error that they raise ends the stream.
        close: Called once at the end in any case.
        keep_alive: Message that is sent while there is no other.
    """

    messages: AsyncIterator[Mapping[str, Any]]
    close: Callable[[], Awaitable[None]]
    keep_alive: Mapping[str, Any]


async def _open_call(request: Request) -> ConnectRpcCall:
    sandbox = await access.find_requested_sandbox(request)
    user = translate.basic_user(request.headers.get("authorization", ""), sandbox.spec.user)
    home = await find_home(request, sandbox.id, user)
    # The default folder of sandboxes is not that of E2B, but that of a template is what the template's steps say.
    return ConnectRpcCall(request, sandbox.id, user, home, home if sandbox.spec.cwd == WORKSPACE else sandbox.spec.cwd)


def add_unary_method(
    router: APIRouter, path: str, message: type[_Message], method: Callable[[ConnectRpcCall, _Message], Awaitable[Mapping[str, Any]]]
) -> None:
    """Add a method with one message in each direction.

    Args:
        router: Router of the API.
        path: Service and method.
        message: Type of the request's message.
        method: Implementation; returns the response's message.
    """

    async def respond(request: Request) -> Response:
        try:
            connect_rpc.check_type(request.headers.get("content-type", ""), connect_rpc.UNARY)
            raw = b"".join([chunk async for chunk in iter_body(request)])
            call = await _open_call(request)
            async with _timeout(call.timeout_s):
                parsed = await parse_message(request, message, raw or b"{}")
                return _json_response(await cancel_on_disconnect(request, _await(method(call, parsed))), 200)
        except SandlotError as error:
            web_errors.record_failure(request.scope, error)
            return _json_response(errors.rpc_error(error), errors.status(error))

    router.add_api_route(path, respond, methods=["POST"])


def add_server_stream(
    router: APIRouter,
    path: str,
    message: type[_Message],
    method: Callable[[ConnectRpcCall, _Message], Awaitable[RpcStream]],
    *,
    bounded: bool = True,
) -> None:
    """Add a method that streams messages to the client.

    Args:
        router: Router of the API.
        path: Service and method.
        message: Type of the request's only message.
        method: Implementation; returns the stream.
        bounded: Whether the timeout of the call ends the stream. False: the method applies the timeout.
    """

    async def respond(request: Request) -> Response:
        try:
            connect_rpc.check_type(request.headers.get("content-type", ""), connect_rpc.STREAM)
            received = [raw async for raw in read_messages(request)]
            call = await _open_call(request)
            if len(received) != 1:
                raise InvalidRequestError(f"The request has {len(received)} messages; this method takes one.", hint="Send one envelope.")
            stream = await cancel_on_disconnect(request, _await(method(call, await parse_message(request, message, received[0]))))
        except SandlotError as error:
            web_errors.record_failure(request.scope, error)
            return Response(connect_rpc.end(errors.rpc_error(error)), media_type=connect_rpc.STREAM)
        return KeepAliveStreamResponse(
            _envelopes(request, stream.messages, call.timeout_s if bounded else None),
            stream.close,
            media_type=connect_rpc.STREAM,
            keep_alive=connect_rpc.envelope(stream.keep_alive),
            keep_alive_s=call.ping_s,
        )

    router.add_api_route(path, respond, methods=["POST"])


def add_client_stream(
    router: APIRouter, path: str, message: type[_Message], method: Callable[[ConnectRpcCall, AsyncIterator[_Message]], Awaitable[None]]
) -> None:
    """Add a method that reads a stream of messages from the client, and responds once.

    Args:
        router: Router of the API.
        path: Service and method.
        message: Type of the request's messages.
        method: Implementation; reads the messages to the end.
    """

    @streams_request_body
    async def respond(request: Request) -> Response:
        try:
            connect_rpc.check_type(request.headers.get("content-type", ""), connect_rpc.STREAM)
            call = await _open_call(request)
            async with aclosing(read_messages(request, call.node.buffers.of(call.principal.owner))) as received, _timeout(call.timeout_s):
                await cancel_on_hangup(request, _await(method(call, (await parse_message(request, message, raw) async for raw in received))))
        except SandlotError as error:
            web_errors.record_failure(request.scope, error)
            return Response(connect_rpc.end(errors.rpc_error(error)), media_type=connect_rpc.STREAM)
        return Response(connect_rpc.envelope({}) + connect_rpc.end(), media_type=connect_rpc.STREAM)

    router.add_api_route(path, respond, methods=["POST"])


async def read_messages(request: Request, buffers: BufferBudget | None = None) -> AsyncGenerator[bytes]:
    """Yield the messages of a request's body as they arrive.

    Args:
        request: Request whose body consists of envelopes.
        buffers: Budget for the memory of incomplete messages. None: the middleware counts the whole body.

    Raises:
        SandlotError: The body is malformed, incomplete or too large.
    """
    decoder, counted_bytes = connect_rpc.ConnectRpcDecoder(), 0
    try:
        async for chunk in iter_body(request):
            messages = decoder.feed(chunk)
            more_bytes = max(0, decoder.held_bytes - UNCOUNTED_BYTES) - counted_bytes
            if buffers is not None and more_bytes > 0:
                buffers.take(more_bytes)
                counted_bytes += more_bytes
            for message in messages:
                yield message
        decoder.finish()
    finally:
        if buffers is not None:
            buffers.give(counted_bytes)


async def parse_message(request: Request, message: type[_Message], raw: bytes) -> _Message:
    """Return a message from JSON.

    Raises:
        InvalidRequestError: The JSON is malformed, or a field is invalid.
        LimitError: The JSON has too many values (``too_large``).
    """
    try:
        return await get_json_parser(request).parse(raw, message.model_validate_json)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise web_errors.validation_error([{**each, "loc": ("body", *each["loc"])} for each in problems[:MAX_ERRORS]]) from None


async def _envelopes(request: Request, messages: AsyncIterator[Mapping[str, Any]], timeout_s: float | None) -> AsyncIterator[bytes]:
    """Yield the messages of a stream as envelopes, and the last envelope."""
    loop = asyncio.get_running_loop()
    deadline_s = None if not timeout_s else loop.time() + timeout_s
    source = aiter(messages)
    try:
        while True:
            async with asyncio.timeout_at(deadline_s):
                message = await anext(source, None)
            if message is None:
                break
            yield connect_rpc.envelope(message)
    except TimeoutError:
        yield connect_rpc.end(errors.rpc_error(_timeout_error(timeout_s)))
    except SandlotError as error:
        web_errors.record_failure(request.scope, error)
        yield connect_rpc.end(errors.stream_error(error))
    except Exception:  # noqa: BLE001 - reported to the client without details
        _log.exception("request.defect", request=get_request_id(request.scope))
        web_errors.record_failure(request.scope, defect := web_errors.internal_error(get_request_id(request.scope)))
        yield connect_rpc.end(errors.rpc_error(defect))
    else:
        yield connect_rpc.end()


@asynccontextmanager
async def _timeout(timeout_s: float | None) -> AsyncIterator[None]:
    """Cancel the body of the context after a time; None or 0 means no timeout."""
    try:
        async with asyncio.timeout(timeout_s or None):
            yield
    except TimeoutError:
        raise _timeout_error(timeout_s) from None


def _timeout_error(timeout_s: float | None) -> TimeoutExceededError:
    return TimeoutExceededError(
        f"The call exceeded its timeout of {timeout_s or 0:g} s.", code=ErrorCode.TIMEOUT, hint="Pass a longer timeout, or 0 for none."
    )


async def _await(work: Awaitable[_Result]) -> _Result:
    return await work


def _json_response(message: Mapping[str, Any], status: int) -> Response:
    return Response(connect_rpc.envelope(message)[connect_rpc.HEAD_BYTES :], status_code=status, media_type=connect_rpc.UNARY)
