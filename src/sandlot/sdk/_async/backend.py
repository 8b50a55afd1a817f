"""Asynchronous primitives of the client. ``_sync/backend.py`` has the synchronous ones; both are written by hand."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread
import httpx

from sandlot.sdk import websocket
from sandlot.sdk.config import Target
from sandlot.sdk.http import tls_context

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    Socket: TypeAlias = ClientConnection

C = TypeVar("C", bound=AbstractAsyncContextManager[Any])
P = ParamSpec("P")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Callback: TypeAlias = Callable[[T], Awaitable[object] | object]
"""Called with each piece as it arrives. A coroutine that it returns is awaited."""
Data: TypeAlias = str | bytes | IO[bytes] | IO[str] | Iterable[bytes] | AsyncIterable[bytes]
"""Content of a file or of standard input."""

CHUNK_BYTES = 256 * 1024
"""Size of the chunks in which files are read and sent."""
INPUT_BYTES = 4 * 1024 * 1024
"""Largest chunk of standard input. Each chunk is a separate request, so that it can be repeated."""
CLEANUP_S = 30.0
KEEP_ALIVE_S = 60.0
"""Seconds for which an idle connection is kept; the service keeps connections longer."""


def http_client(target: Target, headers: dict[str, str], timeout: httpx.Timeout) -> httpx.AsyncClient:
    """Return a pool of keep-alive connections to the service."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEP_ALIVE_S)
    if target.socket is not None:
        transport = httpx.AsyncHTTPTransport(uds=str(target.socket), limits=limits, verify=tls_context(target))
        return httpx.AsyncClient(base_url=target.base_url, headers=headers, timeout=timeout, transport=transport)
    return httpx.AsyncClient(
        base_url=target.base_url, headers=headers, timeout=timeout, limits=limits, verify=tls_context(target), trust_env=target.proxied
    )


async def web_socket(target: Target, path: str) -> Socket:
    """Open a WebSocket to the service."""
    from websockets.asyncio.client import connect, unix_connect  # noqa: PLC0415 - most clients open no WebSocket

    address, options = websocket.address(target, path), websocket.options(target)
    with websocket.translated(target):
        return await (connect(address, **options) if target.socket is None else unix_connect(str(target.socket), address, **options))


async def sleep(delay_s: float) -> None:
    """Sleep."""
    await anyio.sleep(delay_s)


async def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a blocking function in a thread."""
    return await anyio.to_thread.run_sync(function, *args)


async def collected(items: AsyncIterable[T]) -> list[T]:
    """Return all items as a list."""
    return [item async for item in items]


async def call(callback: Callback[T] | None, value: T) -> None:
    """Call a callback if there is one."""
    if callback is None:
        return
    outcome = callback(value)
    if inspect.isawaitable(outcome):
        await outcome


def shielded() -> AbstractContextManager[object]:
    """Return a context in which a cancelled task can clean up, for at most ``CLEANUP_S`` seconds."""
    return anyio.move_on_after(CLEANUP_S, shield=True)


class AwaitableContext(Coroutine[Any, Any, C]):
    """The call of a coroutine function: awaited, or entered as a context manager in place of its result."""

    def __init__(self, coroutine: Coroutine[Any, Any, C]) -> None:
        self._coroutine = coroutine
        self._entered: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> C:
        self._entered = await self._coroutine
        await self._entered.__aenter__()
        return self._entered

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        assert self._entered is not None  # noqa: S101 - entered before
        return await self._entered.__aexit__(kind, error, trace)

    # A task takes only coroutines: asyncio.create_task(AsyncSandbox.create()).
    def send(self, value: Any) -> Any:  # noqa: ANN401 - as in `collections.abc`
        """Forward to the coroutine."""
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as in `collections.abc`
        """Forward to the coroutine."""
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Forward to the coroutine."""
        self._coroutine.close()


def awaitable_context(function: Callable[P, Coroutine[Any, Any, C]]) -> Callable[P, AwaitableContext[C]]:
    """Let ``async with function(...)`` enter the result of a coroutine function; ``await function(...)`` still returns it."""

    @wraps(function)
    def call_function(*args: P.args, **kwargs: P.kwargs) -> AwaitableContext[C]:
        return AwaitableContext(function(*args, **kwargs))

    return call_function


@asynccontextmanager
async def beside() -> AsyncIterator[Callable[..., object]]:
    """Yield a function that starts tasks; they are cancelled when the body ends."""
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        try:
            yield group.start_soon
        except Exception as error:  # noqa: BLE001 - raised below, because the group would wrap it in an ExceptionGroup
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def chunks(data: Data, size: int = CHUNK_BYTES) -> AsyncIterator[bytes]:
    """Iterate over data in chunks of at most ``size`` bytes. The chunks of an iterable are passed on as they are.

    A file is read as fast as the chunks are used. A chunk of a pipe or socket has what has arrived.
    """
    if isinstance(data, str):
        data = data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data)
        for start in range(0, len(view), size):
            yield bytes(view[start : start + size])
    elif hasattr(data, "read"):
        read = getattr(data, "read1", data.read)
        while piece := await in_thread(read, size):
            yield piece.encode() if isinstance(piece, str) else piece
    elif isinstance(data, AsyncIterable):
        async for piece in data:
            yield piece
    else:
        for piece in data:
            yield piece
