"""Requests to upstream indexes: HTTP with the machine's proxies, certificates and credentials, and folders of this machine (``file://``).

Invariants:
- A credential is sent only with requests for URLs for which it is valid, also after redirects. Redirects from https to http and redirects to files
  of this machine are not followed.
- No log line and no error contains a credential, the query of a URL or the body of a response.
- Connecting, receiving each piece of a body, and each pause before a retry have time limits. The number of concurrent requests is limited.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urljoin, urlsplit

import certifi
import httpx

from sandlot.egress.packages.config.values import Access, netloc_of, redacted, split_credential
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.store.open_files import OpenFile
from sandlot.host.blocking import BlockingPool

MAX_REQUESTS = 48
"""Maximum number of concurrent upstream requests, for all sandboxes together."""
ATTEMPTS = 3
IDLE_S = 10.0
"""Seconds without a request after which all connections to upstream are closed."""
PIECE_BYTES = 256 * 1024
_BACKOFF_S = 0.3
_MAX_REDIRECTS = 8
_TIMEOUT = httpx.Timeout(60.0, connect=15.0, pool=None)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_UNAUTHORIZED = 401
_RETRYABLE = frozenset({429, 500, 502, 503, 504})
_log = logging.getLogger(__name__)


class UpstreamError(Exception):
    """Upstream did not send a usable response. The message is meant for the log and contains no secret.

    Args:
        message: Description for the log.
        reason: Reason as a phrase without URLs and names of hosts, which clients may see; empty if there is none.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RefusedRedirectError(UpstreamError):
    """Upstream sent a redirect that is not followed."""


class Authenticator(Protocol):
    """Gives the requests of one :class:`Upstream` credentials that depend on the responses of the index."""

    async def authorization(self, url: str) -> str | None:
        """Return the value of the ``Authorization`` header for a request to a URL, or None if the request needs none."""
        ...

    async def answer(self, url: str, challenges: Sequence[str]) -> bool:
        """Get the credential that a response with status 401 asks for. Return True if the request should be repeated.

        Args:
            url: URL of the request.
            challenges: Values of the ``WWW-Authenticate`` headers of the response.
        """
        ...


class RedirectGuard(Protocol):
    """Decides about redirects of one :class:`Upstream` to other hosts."""

    async def address(self, url: str) -> str | None:
        """Return the address that the request after a redirect must go to. None: a proxy connects.

        Raises:
            RefusedRedirectError: The redirect may not be followed.
            UpstreamError: The host cannot be looked up.
        """
        ...


@dataclass(slots=True)
class UpstreamResponse:
    """A response of upstream. It can be used only inside the ``async with`` block of :meth:`Upstream.get`.

    Args:
        url: URL of the response, after redirects.
        status: HTTP status. For ``file://`` URLs it is 200, 304 or 404.
        headers: Header values by lower-case name.
        length: Size of the body in bytes. None if upstream does not announce the size, or if the body is compressed.
    """

    url: str
    status: int
    headers: Mapping[str, str]
    length: int | None
    _response: httpx.Response | None = None
    _file: OpenFile | None = None
    _threads: BlockingPool | None = None
    _counters: Counters = field(default_factory=Counters)

    async def pieces(self, *, decoded: bool) -> AsyncIterator[bytes]:
        """Yield the body of the response in pieces.

        Args:
            decoded: True: decompress the body (``Content-Encoding``). False: yield the bytes as they were sent.

        Raises:
            UpstreamError: The connection broke before the end of the body.
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
                raise UpstreamError(
                    f"{redacted(self.url)}: the connection broke during the response: {type(error).__name__}", "the connection broke"
                ) from error


class Upstream:
    """HTTP client for the upstream indexes of one registry.

    Args:
        access: Certificates, proxies and credentials of the indexes.
        threads: Thread pool for reading files of this machine.
        slots: Semaphore that limits the concurrent requests of all registries together. A request holds the semaphore until its response is read.
        counters: Counters of the package cache, updated by each request.
        authenticator: Source of credentials. None: those of ``access``.
        guard: Checks redirects to other hosts. None: such redirects are followed to any host.
    """

    def __init__(
        self,
        access: Access,
        threads: BlockingPool,
        slots: asyncio.Semaphore,
        counters: Counters,
        *,
        authenticator: Authenticator | None = None,
        guard: RedirectGuard | None = None,
    ) -> None:
        self._access = access
        self._authenticator = authenticator
        self._guard = guard
        self._threads = threads
        self._slots = slots
        self._counters = counters
        self._opening = asyncio.Lock()
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._clients: dict[tuple[bool, bool], httpx.AsyncClient] = {}
        """Clients by their settings ``verify`` and ``is_direct``."""
        self._active = 0
        self._idle: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Close all connections to upstream. Idempotent."""
        if self._idle is not None:
            self._idle.cancel()
        self._close_clients()
        await asyncio.gather(*self._closing, return_exceptions=True)

    @asynccontextmanager
    async def get(
        self, url: str, headers: Mapping[str, str], *, login: str | None = None, trusted: str | None = None
    ) -> AsyncIterator[UpstreamResponse]:
        """Send a GET request, with retries, and yield the response.

        Args:
            url: An ``https``, ``http`` or ``file`` URL from the configuration or from an index page.
            headers: Headers of the request. An ``Authorization`` header is added if a credential is valid for the URL.
            login: Value of the ``Authorization`` header instead. Not sent after redirects to other hosts.
            trusted: Host and port that the guard does not check, as ``netloc_of`` returns them. None: those of the URL.

        Raises:
            UpstreamError: Upstream did not respond, responded at each attempt with a temporary failure, or sent a redirect that is not followed.
        """
        if urlsplit(url).scheme == "file":
            opened = await self._threads.open(open_local_file, url)
            if opened is None:
                yield UpstreamResponse(url, 404, {}, 0)
                return
            try:
                yield _local_response(url, opened, headers, self._threads)
            finally:
                opened.close()
            return
        async with self._slots, self._keep_connections():
            response = await self._send_with_retries(url, headers, login, trusted)
            try:
                yield UpstreamResponse(
                    str(response.url), response.status_code, dict(response.headers.items()), _length(response), response, _counters=self._counters
                )
            finally:
                await response.aclose()

    @asynccontextmanager
    async def _keep_connections(self) -> AsyncIterator[None]:
        """Keep the connections open during a request, and close them after :data:`IDLE_S` without requests, because httpx does not close them."""
        self._active += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._close_clients)

    def _close_clients(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            task = asyncio.create_task(client.aclose(), name="package-upstream-close")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def _send_with_retries(self, url: str, headers: Mapping[str, str], login: str | None, trusted: str | None) -> httpx.Response:
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(_BACKOFF_S * 2**attempt)
            try:
                response = await self._follow_redirects(url, headers, login, trusted)
            except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as error:
                reason = f"{type(error).__name__}: {error}" if isinstance(error, httpx.ConnectError) else type(error).__name__
                continue
            if response.status_code not in _RETRYABLE:
                return response
            reason = f"the response has status {response.status_code}"
            await response.aclose()
        raise UpstreamError(f"{redacted(url)}: {ATTEMPTS} attempts failed, the last with: {reason}", reason)

    async def _follow_redirects(self, url: str, headers: Mapping[str, str], login: str | None, trusted: str | None) -> httpx.Response:
        first, is_answered = netloc_of(url), False
        for _ in range(_MAX_REDIRECTS):
            is_first = netloc_of(url) == first
            guard = None if netloc_of(url) == (first if trusted is None else trusted) else self._guard
            response = await self._send(url, headers, login if is_first else None, guard)
            if response.status_code == _UNAUTHORIZED and self._authenticator is not None and is_first and not is_answered:
                is_answered = True
                if await self._is_answered(self._authenticator, url, response):
                    continue
            if response.status_code not in _REDIRECTS or "location" not in response.headers:
                return response
            await response.aclose()
            target, _ = split_credential(urljoin(url, response.headers["location"]))
            scheme = urlsplit(target).scheme
            if scheme not in {"http", "https"} or (scheme == "http" and urlsplit(url).scheme == "https"):
                reason = f"a redirect to {scheme or 'an invalid URL'} is not followed"
                raise RefusedRedirectError(f"{redacted(url)}: {reason}", reason)
            url = target
        raise UpstreamError(f"{redacted(url)}: more than {_MAX_REDIRECTS} redirects", f"it sent more than {_MAX_REDIRECTS} redirects")

    async def _send(self, url: str, headers: Mapping[str, str], login: str | None, guard: RedirectGuard | None) -> httpx.Response:
        """Send one request. With a guard, send the request to the address that it has checked, over a connection for this request alone."""
        address = await guard.address(url) if guard is not None else None
        client = await self._client(verify=self._access.verify and not self._is_unverified(url), is_direct=address is not None)
        authorization = login or await self._authorization(url)
        request = client.build_request("GET", url, headers={**headers, **({"Authorization": authorization} if authorization else {})})
        if address is not None:
            request.extensions = {**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")}
            request.url = request.url.copy_with(host=address)  # build_request() has already set the Host header to the name
        self._counters.upstream_requests += 1
        return await client.send(request, stream=True)

    async def _authorization(self, url: str) -> str | None:
        return self._access.authorization(url) if self._authenticator is None else await self._authenticator.authorization(url)

    async def _is_answered(self, authenticator: Authenticator, url: str, response: httpx.Response) -> bool:
        try:
            is_answered = await authenticator.answer(url, response.headers.get_list("www-authenticate"))
        except BaseException:
            await response.aclose()
            raise
        if is_answered:
            await response.aclose()
        return is_answered

    def _is_unverified(self, url: str) -> bool:
        return bool({netloc_of(url), urlsplit(url).hostname or ""} & self._access.unverified)

    async def _client(self, *, verify: bool, is_direct: bool) -> httpx.AsyncClient:
        """Return the client for requests that verify the certificates or not, and that use proxies or not (``is_direct``)."""
        async with self._opening:
            if verify not in self._contexts:
                self._contexts[verify] = await self._threads.run(tls_context, self._access, verify=verify)
            if (verify, is_direct) not in self._clients:
                context = self._contexts[verify]
                proxies = {} if is_direct else self._access.proxies
                self._clients[verify, is_direct] = httpx.AsyncClient(
                    verify=context,
                    trust_env=not is_direct,
                    mounts={
                        pattern: None if proxy is None else httpx.AsyncHTTPTransport(verify=context, proxy=proxy)
                        for pattern, proxy in proxies.items()
                    },
                    timeout=_TIMEOUT,
                    # Requests to an address must not share connections: these are verified for the name of one host.
                    limits=httpx.Limits(
                        max_connections=MAX_REQUESTS, max_keepalive_connections=0 if is_direct else MAX_REQUESTS, keepalive_expiry=30.0
                    ),
                    headers={"User-Agent": "sandlot"},
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # stores no cookie
                )
            return self._clients[verify, is_direct]


def tls_context(access: Access, *, verify: bool) -> ssl.SSLContext:
    """Return a TLS context for connections to upstream, with the certificates of ``access``.

    If a certificate cannot be read, a warning is logged, and this certificate and all that would be loaded after it are not used.

    Args:
        access: Certificates of the registry.
        verify: True: verify the server's certificate. False: accept any certificate, for hosts that the operator trusts.
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
        _log.warning(
            "a configured certificate for package indexes cannot be read; the certificates that follow it are skipped too: %s",
            type(error).__name__,
        )
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def open_local_file(url: str) -> OpenFile | None:
    """Open a file of this machine. For a folder, open its ``index.html``, as pip does. Return None if there is no such file.

    Args:
        url: The ``file://`` URL of the file or folder.
    """
    path = local_path(url)
    try:
        descriptor = os.open(path / "index.html" if path.is_dir() else path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    return OpenFile(descriptor)


def local_path(url: str) -> Path:
    """Return the path on this machine that a ``file://`` URL names."""
    return Path(unquote(urlsplit(url).path))


def _local_response(url: str, opened: OpenFile, headers: Mapping[str, str], threads: BlockingPool) -> UpstreamResponse:
    found = os.fstat(opened.descriptor)
    etag = hashlib.sha256(f"{found.st_ino} {found.st_size} {found.st_mtime_ns}".encode()).hexdigest()[:32]
    if headers.get("If-None-Match") == etag:
        return UpstreamResponse(url, 304, {"etag": etag}, 0)
    return UpstreamResponse(url, 200, {"etag": etag}, opened.size_bytes, None, opened, threads)


def _length(response: httpx.Response) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and "content-encoding" not in response.headers else None
