"""Synchronous primitives of the client. ``_async/backend.py`` has the asynchronous ones; both are written by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, TypeAlias, TypeVar, TypeVarTuple

import httpx

from sandlot.sdk import websocket
from sandlot.sdk.config import Target
from sandlot.sdk.http import tls_context

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    Socket: TypeAlias = ClientConnection

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Callback: TypeAlias = Callable[[T], object]
"""Called with each piece as it arrives."""
Data: TypeAlias = str | bytes | IO[bytes] | IO[str] | Iterable[bytes]
"""Content of a file or of standard input."""

CHUNK_BYTES = 256 * 1024
"""Size of the chunks in which files are read and sent."""
INPUT_BYTES = 4 * 1024 * 1024
"""Largest chunk of standard input. Each chunk is a request of its own, so that it can be repeated."""
KEEP_ALIVE_S = 60.0
"""Seconds for which an idle connection is kept; the service keeps connections longer."""


def http_client(target: Target, headers: dict[str, str], timeout: httpx.Timeout) -> httpx.Client:
    """Return a pool of keep-alive connections to the service."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=KEEP_ALIVE_S)
    if target.socket is not None:
        transport = httpx.HTTPTransport(uds=str(target.socket), limits=limits, verify=tls_context(target))
        return httpx.Client(base_url=target.base_url, headers=headers, timeout=timeout, transport=transport)
    return httpx.Client(
        base_url=target.base_url, headers=headers, timeout=timeout, limits=limits, verify=tls_context(target), trust_env=target.proxied
    )


def web_socket(target: Target, path: str) -> Socket:
    """Open a WebSocket to the service."""
    from websockets.sync.client import connect, unix_connect  # noqa: PLC0415 - most clients open no WebSocket

    address, options = websocket.address(target, path), websocket.options(target)
    with websocket.translated(target):
        if target.socket is None:
            return connect(address, legacy=True, **options)
        return unix_connect(str(target.socket), address, legacy=True, **options)


def sleep(delay_s: float) -> None:
    """Sleep."""
    time.sleep(delay_s)


def in_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call a blocking function."""
    return function(*args)


def collected(items: Iterable[T]) -> list[T]:
    """Return all items as a list."""
    return list(items)


def call(callback: Callback[T] | None, value: T) -> None:
    """Call a callback if there is one."""
    if callback is not None:
        callback(value)


def shielded() -> AbstractContextManager[object]:
    """Return an empty context: nothing cancels a synchronous caller."""
    return nullcontext()


def awaitable_context(function: F) -> F:
    """Return the function: its result is a context manager already."""
    return function


@contextmanager
def beside() -> Iterator[Callable[..., object]]:
    """Yield a function that starts threads. A thread cannot be stopped: one that still waits for its data outlives the body."""

    def start(activity: Callable[..., None], *args: object) -> None:
        threading.Thread(target=activity, args=args, name="sandlot-feeder", daemon=True).start()

    yield start


def chunks(data: Data, size: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Iterate over data in chunks of at most ``size`` bytes; an iterable has chunks of its own.

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
        while piece := read(size):
            yield piece.encode() if isinstance(piece, str) else piece
    else:
        yield from data
