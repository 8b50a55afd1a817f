"""Asking upstream: HTTP with the machine's proxies, certificates and credentials, and folders of this machine (``file://``).

Laws:
- A credential goes to the place that it belongs to and to no other, however often it is redirected; nothing goes from https to http, and
  nothing on a network leads to a file of this machine.
- No log line and no error has a credential, a query or a body.
- Nothing waits for ever: connecting, each piece and each repetition have their time, and only so many requests are under way.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import certifi
import httpx

from sandlot.egress.counters import Counters
from sandlot.egress.disk.opened import Opened
from sandlot.egress.disk.threads import Threads
from sandlot.egress.sources.values import Access, parted, place, shown

AT_ONCE = 48
"""Requests under way, all sandboxes together."""
TRIES = 3
IDLE_S = 10.0
"""Connections are closed when nobody has asked for so long."""
PIECE_BYTES = 256 * 1024
_BACKOFF_S = 0.3
_HOPS = 8
_TIMEOUT = httpx.Timeout(60.0, connect=15.0, pool=None)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_AGAIN = frozenset({429, 500, 502, 503, 504})
_OK = frozenset({200, 206})
_log = logging.getLogger(__name__)


class UpstreamError(Exception):
    """Upstream gave no answer that is of use. The text is for the log: no secret is in it."""


@dataclass(slots=True)
class Reply:
    """What upstream answered. Valid inside of ``async with`` only.

    Args:
        url: Who answered, after redirects.
        status: HTTP's; files have 200, 304 and 404.
        headers: In lower case.
        length: Of the body on its way; None if nobody knows.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    length: int | None
    _response: httpx.Response | None = None
    _file: Opened | None = None
    _threads: Threads | None = None
    _counters: Counters = field(default_factory=Counters)

    async def pieces(self, *, decoded: bool) -> AsyncIterator[bytes]:
        """The body.

        Args:
            decoded: Without its content encoding; files are wanted as they are.

        Raises:
            UpstreamError: It broke off.
        """
        if self._file is not None and self._threads is not None:
            offset = 0
            while piece := await self._threads.run(self._file.read, PIECE_BYTES, offset):
                offset += len(piece)
                yield piece
        elif self._response is not None:
            try:
                async for piece in self._response.aiter_bytes(PIECE_BYTES) if decoded else self._response.aiter_raw(PIECE_BYTES):
                    self._counters.upstream_bytes += len(piece)
                    yield piece
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise UpstreamError(f"{shown(self.url)} broke off: {type(error).__name__}") from error


class Upstream:
    """The upstreams of one registry.

    Args:
        access: How they are reached.
        threads: For files of this machine.
        slots: How many requests may be under way.
        counters: Where requests are counted.
    """

    def __init__(self, access: Access, threads: Threads, slots: asyncio.Semaphore, counters: Counters) -> None:
        self._access = access
        self._threads = threads
        self._slots = slots
        self._counters = counters
        self._making = asyncio.Lock()
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._active = 0
        self._idle: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        if self._idle is not None:
            self._idle.cancel()
        self._let_go()
        await asyncio.gather(*self._closing, return_exceptions=True)

    @asynccontextmanager
    async def get(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[Reply]:
        """Ask for a URL.

        Args:
            url: ``https``, ``http`` or ``file``, as the configuration or an index of it says.
            headers: Beside the credentials.

        Raises:
            UpstreamError: It does not answer.
        """
        if urlsplit(url).scheme == "file":
            opened = await self._threads.open(open_local, url)
            if opened is None:
                yield Reply(url, 404, {}, 0)
                return
            try:
                yield _local(url, opened, headers, self._threads)
            finally:
                opened.close()
            return
        async with self._slots, self._in_use():
            response = await self._answer(url, headers)
            try:
                yield Reply(
                    str(response.url), response.status_code, dict(response.headers.items()), _length(response), response, _counters=self._counters
                )
            finally:
                await response.aclose()

    @asynccontextmanager
    async def _in_use(self) -> AsyncIterator[None]:
        """Connections are kept while somebody asks, and for a moment after: httpx itself closes an old one only when it is used again."""
        self._active += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._let_go)

    def _let_go(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            task = asyncio.create_task(client.aclose(), name="package-upstream-close")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _answer(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        """An answer that is none of those for which asking again helps, if there is one."""
        why = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
            try:
                response = await self._followed(url, headers)
            except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
                why = f"{type(error).__name__}: {error}" if isinstance(error, httpx.ConnectError) else type(error).__name__
                continue
            if response.status_code not in _AGAIN:
                return response
            why = f"status {response.status_code}"
            await response.aclose()
        raise UpstreamError(f"{shown(url)}: {why}")

    async def _followed(self, url: str, headers: Mapping[str, str]) -> httpx.Response:
        for _ in range(_HOPS):
            client = await self._client(verify=self._access.verify and not self._is_unverified(url))
            authorization = self._access.authorization(url)
            request = client.build_request("GET", url, headers={**headers, **({"Authorization": authorization} if authorization else {})})
            self._counters.upstream_requests += 1
            response = await client.send(request, stream=True)
            if response.status_code not in _REDIRECTS or "location" not in response.headers:
                return response
            await response.aclose()
            target, _ = parted(urljoin(url, response.headers["location"]))
            scheme = urlsplit(target).scheme
            if scheme not in {"http", "https"} or (scheme == "http" and urlsplit(url).scheme == "https"):
                raise UpstreamError(f"{shown(url)} redirects to {scheme or 'nowhere'}, which is not followed")
            url = target
        raise UpstreamError(f"{shown(url)}: too many redirects")

    def _is_unverified(self, url: str) -> bool:
        return bool({place(url), urlsplit(url).hostname or ""} & self._access.unverified)

    async def _client(self, *, verify: bool) -> httpx.AsyncClient:
        async with self._making:
            if verify not in self._contexts:
                self._contexts[verify] = await self._threads.run(tls, self._access, verify=verify)
            if verify not in self._clients:
                context = self._contexts[verify]
                self._clients[verify] = httpx.AsyncClient(
                    verify=context,
                    mounts={
                        pattern: None if proxy is None else httpx.AsyncHTTPTransport(verify=context, proxy=proxy)
                        for pattern, proxy in self._access.proxies.items()
                    },
                    timeout=_TIMEOUT,
                    limits=httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE, keepalive_expiry=30.0),
                    headers={"User-Agent": "sandlot"},
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none is ever kept
                )
            return self._clients[verify]


def tls(access: Access, *, verify: bool) -> ssl.SSLContext:
    """How certificates are checked. What cannot be read is left out, and said.

    Args:
        access: The configuration.
        verify: False for what the operator trusts without.
    """
    context = ssl.create_default_context() if access.ca_system else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if access.ca_system:
        context.load_verify_locations(certifi.where())
    try:
        for path in access.ca_files:
            context.load_verify_locations(path)
        if access.ca_text:
            context.load_verify_locations(cadata=access.ca_text)
        if access.client_cert:
            context.load_cert_chain(access.client_cert)
    except (OSError, ValueError) as error:
        _log.warning("a certificate that packages are fetched with is left out: %s", type(error).__name__)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def open_local(url: str) -> Opened | None:
    """A file of this machine; of a folder its ``index.html``, as pip takes it. None if there is none.

    Args:
        url: ``file://``.
    """
    path = local_path(url)
    try:
        descriptor = os.open(path / "index.html" if path.is_dir() else path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return Opened(descriptor)


def local_path(url: str) -> Path:
    """The path of a ``file://`` URL."""
    return Path(unquote(urlsplit(url).path))


def _local(url: str, opened: Opened, headers: Mapping[str, str], threads: Threads) -> Reply:
    found = os.fstat(opened.descriptor)
    etag = hashlib.sha256(f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:32]
    if headers.get("If-None-Match") == etag:
        return Reply(url, 304, {"etag": etag}, 0)
    return Reply(url, 200, {"etag": etag}, opened.size_bytes, None, opened, threads)


def _length(response: httpx.Response) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and "content-encoding" not in response.headers else None
