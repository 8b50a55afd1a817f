"""Downloads one file from upstream into the store. Any number of clients can read the file while it is downloaded.

Invariants:
- No client gets the last bytes of a file before the whole file has matched its digest. A file that does not match (a wrong file) is never stored.
- The download continues as long as one client is connected. If the last client disconnects, the download is cancelled: after :data:`LINGER_S`,
  because clients often reconnect, or at once if nothing was received yet or too many other downloads have no client.
- If a connection breaks, the download continues at the same byte over a new connection, or from the next URL if the first URL no longer works.
- If a URL returned a wrong file and no client has received a byte yet, the next URL is tried at once. Later downloads try this URL last.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from sandlot.egress.packages.config.values import redacted
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.digests import Digest
from sandlot.egress.packages.http import Headers
from sandlot.egress.packages.store.open_files import DraftFile
from sandlot.egress.packages.store.store import Kind, PackageStore
from sandlot.egress.packages.upstream import PIECE_BYTES, Upstream, UpstreamError, UpstreamResponse
from sandlot.host.blocking import BlockingPool

WITHHELD_BYTES: Final = 64 * 1024
"""Number of bytes at the end of a file that clients get only after the whole file is verified."""
LINGER_S: Final = 10.0
"""Seconds for which a download continues after its last client has disconnected."""
MAX_WRONG_URLS: Final = 1024
"""Maximum number of URLs that are remembered because they returned a wrong file."""
_GROWTH_BYTES: Final = 16 * 1024 * 1024
"""Disk space in bytes that is allocated at a time. Space is allocated as the file arrives, so that a wrong announced size evicts no other files."""
_ATTEMPTS: Final = 3
_OK, _PARTIAL, _RANGE_NOT_SATISFIABLE, _MISSING = 200, 206, 416, frozenset({401, 403, 404, 410})
_log = logging.getLogger(__name__)


class NotFoundError(Exception):
    """Upstream has no such file."""


class NotStorableError(Exception):
    """The file cannot be stored, so it must be sent from upstream to the client without being stored."""


class WrongFileError(UpstreamError):
    """The file does not match its digest or changed during the download."""


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A package file: its upstream URLs, and the digest to verify it with.

    Args:
        urls: URLs of the file, in the order in which they are tried.
        digest: Digest that the file must have. None if the index names no digest.
        is_verified_by_client: True if the client verifies the file and the content at its URL never changes. A file without a digest is stored
            only if this is True.
        size_bytes: Size that the file must have. None if the index names no size.
    """

    urls: tuple[str, ...]
    digest: Digest | None
    is_verified_by_client: bool = False
    size_bytes: int | None = None

    @property
    def stored_as(self) -> tuple[Kind, str] | None:
        """Kind and name of the file in the store. None if the file must not be stored."""
        if self.digest is not None:
            return Kind.FILES, str(self.digest)
        if self.is_verified_by_client and urlsplit(self.urls[0]).scheme != "file":
            return Kind.URLS, hashlib.sha256(self.urls[0].encode()).hexdigest()
        return None

    @property
    def headers(self) -> Headers:
        """HTTP headers of a response with this file."""
        etag = (("ETag", f'"{self.digest}"'), ("Cache-Control", "public, max-age=31536000, immutable")) if self.digest else ()
        return (("Content-Type", "application/octet-stream"), ("Accept-Ranges", "bytes"), *etag)


class WrongUrls:
    """Remembers URLs that returned a wrong file, so that later downloads of the file try them last."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[tuple[Digest, str], None] = OrderedDict()

    def sort(self, file: PackageFile) -> PackageFile:
        """Return a copy of ``file`` whose URLs are sorted: URLs that returned a wrong file come last."""
        digest = file.digest
        return file if digest is None else replace(file, urls=tuple(sorted(file.urls, key=lambda url: (digest, url) in self._wrong)))

    def add(self, digest: Digest | None, urls: Iterable[str]) -> None:
        """Remember URLs that returned a wrong file.

        Args:
            digest: Digest that the file should have had. None: nothing is remembered, because a file without a digest has only one URL.
            urls: The URLs.
        """
        if digest is None:
            return
        for url in urls:
            self._wrong[digest, url] = None
            if len(self._wrong) > MAX_WRONG_URLS:
                self._wrong.popitem(last=False)


class Download:
    """One download of a file into the store. :meth:`start` begins it.

    Args:
        file: The file to download. Its ``stored_as`` must not be None.
        upstream: Client of the registry that the file belongs to.
        store: Store to write the file to.
        threads: Thread pool for disk access.
        counters: Counters of the package cache, updated by the download.

    Attributes:
        length: Size of the file in bytes. None before upstream has responded, and if upstream does not announce the size.
        wrong_urls: URLs that returned a wrong file or a part of a wrong file.
        is_complete: True if the whole file has arrived and matches its digest.
        is_over: True if the download has ended, with or without success. Clients may join only while this is False.
        task: Task that runs the download. None before :meth:`start`.
    """

    def __init__(self, file: PackageFile, upstream: Upstream, store: PackageStore, threads: BlockingPool, counters: Counters) -> None:
        self.file = file
        self._upstream = upstream
        self._store = store
        self._threads = threads
        self._counters = counters
        self._draft: DraftFile | None = None
        self._hash = file.digest.new_hash() if file.digest is not None else None
        self._ready_bytes = 0
        self._was_read = False
        self._clients = 0
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._may_linger: Callable[[], bool] = lambda: False
        self.length: int | None = None
        self.wrong_urls: list[str] = []
        self.is_complete = False
        self.is_over = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_lingering(self) -> bool:
        """True while the download continues although no client is connected."""
        return self._linger is not None and not self.is_over

    def start(self, on_end: Callable[[Download], None], may_linger: Callable[[], bool]) -> None:
        """Begin the download in a new task.

        Args:
            on_end: Called once with this download when its task has ended.
            may_linger: Returns whether the download may continue for :data:`LINGER_S` without clients. Called when the last client leaves.
        """
        self._may_linger = may_linger
        self.task = asyncio.create_task(self._run(), name="package-download")
        self.task.add_done_callback(lambda _: on_end(self))

    def join(self) -> None:
        """Add a client. The caller must call :meth:`leave` exactly once."""
        self._clients += 1
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    async def leave(self) -> None:
        """Remove a client. If no client is left, an unfinished download is cancelled.

        If upstream has responded and the function ``may_linger`` of :meth:`start` returns True, the download is cancelled only after
        :data:`LINGER_S` without a new client. Otherwise it is cancelled at once.
        """
        self._clients -= 1
        if self._clients:
            return
        if self.is_over or self.task is None:
            await self._close()
        elif self.is_complete:
            return  # the task is writing the complete file to the store and ends soon
        elif self._draft is None or not self._may_linger():
            self.task.cancel()  # without a client, a download that has received nothing must not take up an upstream request
        else:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._end_lingering)

    async def wait_for_length(self) -> int | None:
        """Wait until upstream has responded, and return the size of the file in bytes. Return None if upstream does not announce the size.

        Raises:
            NotFoundError: Upstream has no such file.
            NotStorableError: The store cannot take the file.
            UpstreamError: The download failed.
        """
        await self._wait_until(lambda: self._draft is not None or self._error is not None)
        if self._error is not None:
            raise self._error
        return self.length

    async def wait_until_complete(self) -> int:
        """Wait until the whole file has arrived and matches its digest. Return its size in bytes.

        Raises:
            NotFoundError: Upstream has no such file.
            NotStorableError: The store cannot take the file.
            UpstreamError: The download failed.
        """
        await self._wait_until(lambda: self.is_complete or self._error is not None)
        if not self.is_complete and self._error is not None:
            raise self._error
        return self._ready_bytes

    async def pieces(self, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield a part of the file in pieces, as it arrives from upstream.

        Args:
            start: Offset of the first byte.
            length: Number of bytes to yield. None: all bytes up to the end of the file.

        Raises:
            NotStorableError: The disk became full before the digest of the file was checked. The bytes that were yielded may be right.
            UpstreamError: The download failed, or the file is wrong.
        """
        offset = start
        while length is None or offset < start + length:
            if self._ready_bytes <= offset and not self.is_complete:
                if self._error is not None:
                    raise self._error
                await self._changed.wait()
                continue
            draft = self._draft
            most = min(PIECE_BYTES, self._ready_bytes - offset, PIECE_BYTES if length is None else start + length - offset)
            if draft is None or most <= 0:
                return
            self._was_read = True
            piece = await self._threads.run(draft.read, most, offset)
            offset += len(piece)
            yield piece

    def _end_lingering(self) -> None:
        if self.task is not None and not self.is_complete:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._fetch()
        except (UpstreamError, NotFoundError, NotStorableError) as error:
            self._error = error
        except OSError as error:
            _log.warning("the package cache cannot write a download to the disk: %s", error.strerror)
            self._error = NotStorableError()
        except asyncio.CancelledError:
            self._error = UpstreamError("the download was cancelled because no client was connected or the service is stopping")
            raise
        except Exception:  # noqa: BLE001 - clients get an error; the traceback is logged
            _log.exception("a package download failed unexpectedly")
            self._error = UpstreamError("the download failed because of an internal error; the log has the traceback")
        finally:
            self.is_over = True
            self._notify()
            if not self._clients:
                await self._close()

    async def _fetch(self) -> None:
        tried: list[str] = []
        wrong: WrongFileError | None = None
        for number, url in enumerate(self.file.urls, 1):
            tried.append(url)
            try:
                await self._fetch_from(url)
                self._verify(url)
                break
            except WrongFileError as error:
                self.wrong_urls += tried
                if number == len(self.file.urls) or self._was_read:
                    raise
                wrong, tried = error, []
                await self._restart()
            except (NotFoundError, UpstreamError) as error:
                if number == len(self.file.urls):
                    raise wrong or error from None
        draft, stored_as = self._draft, self.file.stored_as
        if draft is None or stored_as is None:
            raise NotFoundError
        self.is_complete = True
        self._notify(draft.size_bytes)
        await self._threads.run(self._store.publish, draft, *stored_as)

    def _check_size(self, size_bytes: int, *, is_exact: bool = False) -> None:
        try:
            check_size(self.file, size_bytes, is_exact=is_exact)
        except WrongFileError:
            self._counters.mismatches += 1
            raise

    def _verify(self, url: str) -> None:
        digest = self.file.digest
        if self._draft is not None:
            self._check_size(self._draft.size_bytes, is_exact=True)
        if digest is not None and self._hash is not None and self._hash.hexdigest() != digest.value:
            self._counters.mismatches += 1
            raise wrong_digest(url, digest)

    async def _restart(self) -> None:
        """Discard the bytes received so far, so that the download can begin again from another URL."""
        draft, self._draft = self._draft, None
        self._hash = self.file.digest.new_hash() if self.file.digest is not None else None
        self._ready_bytes = 0
        if draft is not None:
            await self._threads.run(draft.close)

    async def _fetch_from(self, url: str) -> None:
        """Download into the draft file all bytes that it does not have yet. If the connection breaks, request the rest; at most 3 requests in all."""
        version = ""
        for attempt in range(_ATTEMPTS):
            done = self._draft.size_bytes if self._draft else 0
            if done and done == self.length:
                return
            try:
                resume = {"Range": f"bytes={done}-", **({"If-Range": version} if version else {})} if done else {}
                async with self._upstream.get(url, {"Accept-Encoding": "identity", **resume}) as response:
                    if _ended_at(response, done):
                        return
                    skip = self._bytes_to_skip(response, done)
                    version = _version(response)
                    if self._draft is None:
                        await self._begin(response.length)
                    async for piece in response.pieces(decoded=False):
                        fresh = piece[skip:]
                        skip = max(0, skip - len(piece))
                        if fresh:
                            await self._write(fresh)
                return
            except WrongFileError:
                raise
            except UpstreamError:
                # Without a digest or an If-Range value, a change of the file between two requests would go unnoticed.
                can_resume = self._draft is not None and (self._hash is not None or version)
                if not can_resume or attempt + 1 == _ATTEMPTS:
                    raise

    def _bytes_to_skip(self, response: UpstreamResponse, done: int) -> int:
        """Return how many bytes at the beginning of a response's body were received before and must be skipped.

        Args:
            response: Response to the request that continues the download.
            done: Number of bytes received before; 0 in the first request.

        Raises:
            NotFoundError: Upstream no longer has the file.
            UpstreamError: The response does not contain the file.
            WrongFileError: The file changed during the download.
        """
        check_has_file(response)
        if not done or (response.status == _PARTIAL and response.headers.get("content-range", "").startswith(f"bytes {done}-")):
            return 0
        has_other_length = response.status == _OK and None not in {response.length, self.length} and response.length != self.length
        if has_other_length or self._hash is None:
            self._counters.mismatches += 1
            raise WrongFileError(f"{redacted(response.url)} changed during its download")
        return done

    async def _begin(self, length: int | None) -> None:
        if length is not None:
            self._check_size(length, is_exact=True)
        if length is None and self._hash is None:
            raise NotStorableError  # without a size and a digest, an incomplete file cannot be recognized
        await self._store.read_disk()
        draft = await self._threads.open(self._store.create_draft)
        if draft is None:
            raise NotStorableError
        has_room = False
        try:
            has_room = await self._threads.run(self._store.make_room, draft, _growth(draft, length), length or 0)
        finally:
            if not has_room:  # or if the task was cancelled, when no other code can close the draft
                await self._threads.run(draft.close)
        if not has_room:
            raise NotStorableError
        self.length = length
        self._draft = draft
        self._notify(0)

    async def _write(self, piece: bytes) -> None:
        draft = self._draft
        assert draft is not None  # noqa: S101 - for the type checker: _begin() was called
        self._check_size(draft.size_bytes + len(piece))
        if draft.size_bytes + len(piece) > draft.allocated_bytes:
            await self._store.read_disk()
            if not await self._threads.run(self._store.make_room, draft, _growth(draft, self.length)):
                raise NotStorableError
        await self._threads.run(self._write_and_hash, draft, piece)
        self._notify(max(0, draft.size_bytes - WITHHELD_BYTES))

    def _write_and_hash(self, draft: DraftFile, piece: bytes) -> None:
        if self._hash is not None:
            self._hash.update(piece)
        draft.write(piece)

    def _notify(self, ready_bytes: int | None = None) -> None:
        """Wake all clients that wait for progress of the download.

        Args:
            ready_bytes: Number of bytes from the beginning of the file that clients may read now. None: the number has not changed.
        """
        if ready_bytes is not None:
            self._ready_bytes = ready_bytes
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def _close(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        draft, self._draft = self._draft, None
        if draft is not None:
            await self._threads.run(draft.close)


def check_has_file(response: UpstreamResponse) -> None:
    """Check that the status of an upstream response means that its body is the file or a part of it.

    Args:
        response: Response to a request for a package file.

    Raises:
        NotFoundError: Upstream has no such file.
        UpstreamError: Upstream responded with another status.
    """
    if response.status in _MISSING:
        raise NotFoundError
    if response.status not in {_OK, _PARTIAL}:
        reason = f"the response has status {response.status}"
        raise UpstreamError(f"{redacted(response.url)}: {reason}", reason)


def check_size(file: PackageFile, size_bytes: int, *, is_exact: bool) -> None:
    """Check the size of a file against the size in its index.

    Args:
        file: The file.
        size_bytes: Size of the file, or number of its bytes that have arrived.
        is_exact: True if ``size_bytes`` is the size of the whole file.

    Raises:
        WrongFileError: The file is longer or shorter than its index says.
    """
    expected = file.size_bytes
    if expected is not None and (size_bytes > expected or (is_exact and size_bytes != expected)):
        reason = f"it has {size_bytes if is_exact else f'more than {expected}'} bytes instead of {expected}"
        raise WrongFileError(f"the file at {redacted(file.urls[0])} has a wrong size: {reason}", reason)


def wrong_digest(url: str, digest: Digest) -> WrongFileError:
    """Return the error for a file that does not match its digest."""
    message = f"the file at {redacted(url)} does not match the digest in its index ({digest.algorithm})"
    return WrongFileError(message, "its content does not match its digest")


def _ended_at(response: UpstreamResponse, done: int) -> bool:
    """Return whether a response to a range request says that the file has exactly ``done`` bytes, so that nothing is left to fetch."""
    is_after_end = done and response.status == _RANGE_NOT_SATISFIABLE
    return bool(is_after_end and response.headers.get("content-range", "").strip() == f"bytes */{done}")


def _version(response: UpstreamResponse) -> str:
    """Return the ``If-Range`` value (RFC 9110, 13.1.5): the ETag, else the ``Last-Modified`` time; empty if the ETag is weak or both are missing."""
    etag = response.headers.get("etag", "")
    return etag if etag.startswith('"') else "" if etag else response.headers.get("last-modified", "")


def _growth(draft: DraftFile, length: int | None) -> int:
    return _GROWTH_BYTES if length is None else max(1, min(_GROWTH_BYTES, length - draft.allocated_bytes))
