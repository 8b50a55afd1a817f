# Made from src/sandlot/sdk/_async/client.py by scripts/unasync.py; change that file, not this one.
"""One connection pool to one service, and how every call on it behaves: errors, repetition, the local service's start."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from sandlot import __version__
from sandlot.model.errors import ConflictError, SandlotError
from sandlot.sdk import local_service, requests, responses, retries
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.events import Events
from sandlot.sdk._sync.executions import Executions
from sandlot.sdk._sync.file_store import FileStore
from sandlot.sdk._sync.keys import Keys
from sandlot.sdk._sync.pools import Pools
from sandlot.sdk._sync.programs import OneShots
from sandlot.sdk._sync.snapshots import Snapshots
from sandlot.sdk._sync.volumes import Volumes
from sandlot.sdk._sync.webhooks import Webhooks
from sandlot.sdk.config import Target, resolve
from sandlot.sdk.http import ConnectionFailedError, ConnectionLostError, sendable, translated, unreachable_error
from sandlot.sdk.models.sandboxes import SandboxInfo
from sandlot.sdk.models.service import ServiceStopResult
from sandlot.sdk.sse import Decoder, Event

T = TypeVar("T")

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""How long the service may be silent in the middle of a call; event streams carry a comment every 15 s."""


class Client(OneShots):
    """A service, reached over one pool of keep-alive connections. Use it in one event loop.

    Args:
        url: Its address: ``http://host:port``, ``https://host``, ``unix:///path``; by default ``SANDLOT_URL``, and where that is unset the
            local service, which is started when it does not run.
        api_key: The key, by default ``SANDLOT_API_KEY``; needed over TCP.
        data_dir: State directory of the local service, by default ``SANDLOT_DATA_DIR`` or ``/var/lib/sandlot``.
        autostart: Whether a local service that does not run is started.
    """

    def __init__(self, *, url: str | None = None, api_key: str | None = None, data_dir: str | Path | None = None, autostart: bool = True) -> None:
        self.target: Target = resolve(os.environ, url=url, api_key=api_key, data_dir=data_dir)
        self._autostart = autostart
        self._http = self._connections()
        self._opening = threading.Lock()
        """Of several threads that call after a close, one opens the connections of all; held for no call and no wait."""
        self._reached: bool | None = None if self.target.socket is None else False
        """Whether the socket has answered; None for TCP, which is not asked beforehand."""
        self._met = False
        """True once the service accepted a connection. If the service stops after that, calls wait until it is started again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Sandboxes live on; a call that comes later opens a new connection."""
        self._http.close()

    @property
    def waits(self) -> bool:
        """Whether an answer may take as long as it likes.

        On a socket of this machine the far end's death is seen at once. Over TCP it is not, and proxies cut connections that are silent: there, long
        calls take their answers as events, between which the service sends a sign of life.
        """
        return self.target.socket is not None

    def sandboxes(
        self,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ended: bool = False,
        name: str | None = None,
        limit: int | None = None,
    ) -> list[SandboxInfo]:
        """The sandboxes that live now, oldest first: your own, or with an operator's key everybody's.

        Args:
            state: Only those in this state, or in one of these.
            metadata: Only those that have all of these entries.
            ended: Also those that have ended, for as long as the service keeps their records.
            name: Only those of this name.
            limit: So many at most; all of them where left out.
        """
        return backend.collected(self.iter_sandboxes(state=state, metadata=metadata, ended=ended, name=name, limit=limit))

    def iter_sandboxes(
        self,
        *,
        state: str | Iterable[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        ended: bool = False,
        name: str | None = None,
        limit: int | None = None,
    ) -> Iterator[SandboxInfo]:
        """The same, one by one: a page is asked for when the one before was used."""
        params = requests.sandboxes_query(state=state, metadata=metadata, ended=ended, name=name)
        return self.items("/v1/sandboxes", "sandboxes", SandboxInfo.parse, params=params, limit=limit)

    def items(self, path: str, key: str, parse: Callable[[dict[str, Any]], T], *, params: Mapping[str, Any], limit: int | None = None) -> Iterator[T]:
        """What a list of the service holds, page by page.

        Args:
            path: The list's.
            key: Under which a page has its items.
            parse: Reads one item.
            params: What is asked for.
            limit: So many items at most.

        Raises:
            InternalError: A page leads to itself.
        """
        cursor: str | None = None
        left = limit
        while True:
            page = self.request("GET", path, params={**params, **requests.omit_none(cursor=cursor, limit=requests.page_size(left))})
            for item in page[key][:left]:
                yield parse(item)
            left = None if left is None else left - len(page[key])
            if (left is not None and left <= 0) or (cursor := responses.next_cursor(page, cursor)) is None:
                return

    def sandbox(self, sandbox: str) -> SandboxInfo:
        """What is known of a sandbox, also of one that has ended, for a while.

        Raises:
            NotFoundError: There was never one of this id, or it ended long ago.
        """
        return SandboxInfo.parse(self.request("GET", f"/v1/sandboxes/{requests.path_segment(sandbox)}"))

    def kill(self, sandbox: str) -> None:
        """End a sandbox and remove every trace of it. Doing so twice does no harm.

        Raises:
            NotFoundError: There was never one of this id.
        """
        self.request("DELETE", f"/v1/sandboxes/{requests.path_segment(sandbox)}")

    @property
    def keys(self) -> Keys:
        """Who may ask, and what they may take."""
        return Keys(self)

    @property
    def pools(self) -> Pools:
        """Sandboxes that are made before anybody asks."""
        return Pools(self)

    @property
    def webhooks(self) -> Webhooks:
        """Addresses that are told of what happens."""
        return Webhooks(self)

    @property
    def files(self) -> FileStore:
        """Files that outlive sandboxes."""
        return FileStore(self)

    @property
    def snapshots(self) -> Snapshots:
        """Snapshots of sandboxes."""
        return Snapshots(self)

    @property
    def volumes(self) -> Volumes:
        """Files that outlive sandboxes, as folders of theirs."""
        return Volumes(self)

    @property
    def events(self) -> Events:
        """What happens to sandboxes."""
        return Events(self)

    @property
    def executions(self) -> Executions:
        """The log of what ran."""
        return Executions(self)

    def templates(self) -> list[dict[str, Any]]:
        """The templates that sandboxes can be made from: ``name``, ``description``, ``digest``, ``built``."""
        answer = self.request("GET", "/v1/templates")
        return list(answer["templates"])

    def version(self) -> dict[str, Any]:
        """The service's ``version``, ``generation`` and ``node``."""
        return self.request("GET", "/v1/version")

    def capabilities(self) -> dict[str, Any]:
        """What the service's drivers can do on their host."""
        return self.request("GET", "/v1/capabilities")

    def capacity(self) -> dict[str, Any]:
        """What the service's node may promise to sandboxes (``total``), what it has ``promised`` and what is ``free``.

        Each has ``memory_bytes``, ``disk_bytes`` and ``pids`` (tasks of the host); beside them are ``sandboxes`` and ``max_sandboxes``.
        """
        return self.request("GET", "/v1/capacity")

    def stop_service(self) -> ServiceStopResult:
        """End the local service. Its sandboxes live on; the next service takes them over.

        Returns:
            What ends, and what lives on.

        Raises:
            ForbiddenError: It is reached over TCP.
        """
        answer = self.request("POST", "/v1/service/stop")
        return ServiceStopResult.parse(answer)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        read_timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> dict[str, Any]:
        """Make one call and read its whole answer.

        Args:
            method: HTTP method.
            path: Below the service's address, beginning with a slash.
            params: Query parameters.
            body: JSON to send.
            content: Bytes to send instead, or pieces of them; pieces cannot be sent twice, so nothing is repeated.
            headers: More of them.
            once: Whether the service does it once however often it is asked, so that it may be asked again where the connection broke.
            read_timeout_s: How long the answer may take to begin; None waits for ever.

        Returns:
            The answer's JSON object; empty for an empty answer.

        Raises:
            SandlotError: The service's, or UnavailableError where none answers.
        """
        tries = 0
        while True:
            tries += 1
            try:
                with self.stream(method, path, params=params, body=body, content=content, headers=headers, read_timeout_s=read_timeout_s) as response:
                    return responses.decode_object(self._read(response))
            except (ConnectionLostError, ConflictError) as error:
                if isinstance(error, ConflictError) and not responses.cut_by_hibernation(error):
                    raise
                wait_s = retries.cut_wait_s(tries, once=once, luck=retries.roll())
                if wait_s is None:
                    raise
            backend.sleep(wait_s)

    @contextmanager
    def event_stream(
        self,
        method: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Iterator[Event]]:
        """Make one call whose answer is a stream of events; leaving the context ends the call.

        Raises:
            SandlotError: The service's, UnavailableError where the stream is cut; both also while iterating.
        """
        with self.stream(method, path, params=params, body=body, headers=headers, accept="text/event-stream") as response:
            yield self._decoded(response)

    def _decoded(self, response: httpx.Response) -> Iterator[Event]:
        decoder = Decoder()
        with translated(self.target):
            for piece in response.iter_bytes():
                for event in decoder.feed(piece):
                    if event.name == "failure":
                        raise responses.error_from_problem(event.data)
                    yield event

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        content: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        accept: str = "application/json",
        read_timeout_s: float | None = ANSWER_TIMEOUT_S,
    ) -> Iterator[httpx.Response]:
        """Make one call and give its answer's head; the body is read by the caller. Arguments are those of :meth:`request`."""
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None, read=read_timeout_s)
        sent = {"Accept": accept, "Content-Type": "application/json" if content is None else "application/octet-stream", **(headers or {})}
        if body is not None:
            content = requests.encode_body(body)
        with self._opening:
            if self._http.is_closed:
                self._http = self._connections()
        tries = 0
        while True:
            tries += 1
            with sendable():
                request = self._http.build_request(method, path, params=params, content=content, headers=sent, timeout=timeout)
            response = self._answered(request)
            try:
                if response.is_success:
                    yield response
                    return
                error, wait_s = self._refusal(response, tries)
            finally:
                response.close()
            if wait_s is None or not (content is None or isinstance(content, bytes)):
                raise error
            backend.sleep(wait_s)

    def _answered(self, request: httpx.Request) -> httpx.Response:
        """Send a request; what could not be sent because nobody was there is sent to whoever comes back."""
        tries, waited_s = 0, 0.0
        while True:
            tries += 1
            try:
                self._reach()
                with translated(self.target):
                    response = self._http.send(request, stream=True)
            except ConnectionFailedError:
                if self._reached:
                    self._reached = False  # it was there before: a local service that left meanwhile
                wait_s = retries.unreached_wait_s(tries, waited_s, met=self._met, luck=retries.roll())
                if wait_s is None:
                    raise
            else:
                self._met = True
                return response
            backend.sleep(wait_s)
            waited_s += wait_s

    def web_socket(self, path: str) -> backend.Socket:
        """Open a WebSocket.

        Args:
            path: Below the service's address, with its query.

        Raises:
            SandlotError: The service's, or UnavailableError where none answers.
        """
        self._reach()
        return backend.web_socket(self.target, path)

    def _reach(self) -> None:
        """See to it, before the first call, that there is a service on the socket."""
        if self._reached is False and self.target.socket is not None:
            if self.target.local is not None and self._autostart:
                backend.in_thread(local_service.ensure, self.target.local)
            elif not backend.in_thread(local_service.answers, self.target.socket):
                raise unreachable_error(self.target)
            self._reached = self._met = True

    def _connections(self) -> httpx.Client:
        headers = {"User-Agent": f"sandlot-python/{__version__}"}
        if self.target.api_key is not None:
            headers["Authorization"] = f"Bearer {self.target.api_key}"
        return backend.http_client(self.target, headers, httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S, pool=None))

    def _read(self, response: httpx.Response) -> bytes:
        with translated(self.target):
            return response.read()

    def _refusal(self, response: httpx.Response, tries: int) -> tuple[SandlotError, float | None]:
        body = self._read(response)
        headers = response.headers
        error = responses.error_from_response(response.status_code, headers.get("content-type", ""), body, headers.get("x-request-id", ""))
        return error, retries.refused_wait_s(
            tries, retryable=responses.is_retryable(body), retry_after=headers.get("retry-after"), luck=retries.roll()
        )
