"""Responses with package files, from the package store or from an upstream index.

Invariants:
- Clients that request the same file at the same time share one download.
- A file whose index names a digest is verified while it is sent to the first client, and is then stored.
- A file without a digest is passed through: sent from upstream to its client without being stored. There is one exception: files that the client
  itself verifies, such as Debian packages, are stored.
- HEAD requests and files that are passed through take no disk space.
- If the store or the disk is full, every file that is not stored yet is passed through. Files with a digest are still verified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final
from urllib.parse import urlsplit

from sandlot.egress.packages.config.values import redacted
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.download import Download, NotFoundError, NotStorableError, PackageFile, WrongUrls, check_has_file
from sandlot.egress.packages.http import ByteRange, Headers, HttpError, PackageFileRequest, Response, bytes_response, parse_range
from sandlot.egress.packages.pass_through import BusyError, PassThrough
from sandlot.egress.packages.store.open_files import OpenFile
from sandlot.egress.packages.store.store import Kind, PackageStore
from sandlot.egress.packages.upstream import PIECE_BYTES, Upstream, UpstreamError, open_local_file
from sandlot.host.blocking import BlockingPool

MAX_LINGERING: Final = 4
"""Maximum number of downloads that continue for some seconds (``LINGER_S``) after their last client has disconnected."""
NOT_FOUND = "The package index that this host uses has no such file. Check its name and version."
UNREACHABLE = "The file could not be fetched from the package index that this host uses. Try again; the service's log has the reason."
BUSY = "Too many files that the package cache cannot store are being downloaded at once. Try again in 10 seconds."

_OK, _PARTIAL = 200, 206
_log = logging.getLogger(__name__)


class PackageFiles:
    """Creates the responses to requests for package files of all registries.

    Args:
        store: Store of downloaded files.
        threads: Thread pool for disk access.
        counters: Counters of the package cache, updated by each request.
    """

    def __init__(self, store: PackageStore, threads: BlockingPool, counters: Counters) -> None:
        self._store = store
        self._threads = threads
        self._counters = counters
        self._downloads: dict[tuple[Kind, str], Download] = {}
        self._running: set[Download] = set()
        self._wrong_urls = WrongUrls()
        self._pass_through = PassThrough(self._wrong_urls, counters)

    async def aclose(self) -> None:
        """Cancel all downloads in progress. A download that has received its whole file is still written to the store."""
        running = [(download, download.task) for download in self._running if download.task is not None]
        for download, task in running:
            if not download.is_complete:
                task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)

    async def open_stored(self, file: PackageFile, range_: str | None) -> Response | None:
        """Return a response with a stored file, or None if the file is not in the store.

        Args:
            file: The requested file.
            range_: Value of the request's ``Range`` header. None requests the whole file.

        Raises:
            HttpError: Status 416: the range is outside the file.
        """
        stored_as = file.stored_as
        opened = await self._threads.open(self._store.open, *stored_as) if stored_as is not None else None
        return self._respond_from(opened, file, range_) if opened is not None else None

    async def respond(self, file: PackageFile, upstream: Upstream, request: PackageFileRequest) -> Response:
        """Return the response to a request for a package file.

        Args:
            file: The requested file.
            upstream: Client of the registry that the file belongs to.
            request: Options of the request, such as its range.

        Raises:
            HttpError: Upstream has no such file (404), the range is outside the file (416), the file could not be fetched (502), or too many
                files are being sent without being stored (503).
        """
        try:
            return await self.open(file, upstream, request)
        except NotFoundError:
            raise HttpError(404, NOT_FOUND) from None
        except BusyError:
            raise HttpError(503, BUSY, (("Retry-After", "10"),)) from None
        except UpstreamError as error:
            self._counters.errors += 1
            _log.warning("a package file could not be fetched: %s", error)
            # The response must not contain the URL of the upstream index: sandboxes must not learn the machine's configuration.
            raise HttpError(502, UNREACHABLE) from None

    async def open(self, file: PackageFile, upstream: Upstream, request: PackageFileRequest) -> Response:
        """Do the same as :meth:`respond`, for callers that report the errors themselves.

        Raises:
            HttpError: Status 416: the range is outside the file.
            NotFoundError: Upstream has no such file.
            BusyError: Too many files are being sent without being stored.
            UpstreamError: The file could not be fetched, or is a wrong file.
        """
        must_reload = False
        if file.digest is None and file.stored_as is not None:
            await self._wait_until_stored(file)
            must_reload = request.reload
        found = None if must_reload else await self._open_existing(file, request.range_)
        if found is not None:
            return found
        self._counters.misses += 1
        if request.head:
            return await self._respond_to_head(file, upstream)
        if file.stored_as is None:
            return await self._pass_through.respond(file, upstream, request.sandbox)
        return await self._download(file, upstream, request)

    async def _open_existing(self, file: PackageFile, range_: str | None) -> Response | None:
        """Return a response with a file that this machine already has, or None if the file must be fetched."""
        if file.stored_as is not None:
            # Two attempts: if a download ends after open_stored() and before _is_downloading(), the second open_stored() finds its file.
            for _ in range(2):
                found = await self.open_stored(file, range_)
                if found is not None:
                    return found
                if self._is_downloading(file):
                    break
        elif urlsplit(file.urls[0]).scheme == "file":
            opened = await self._threads.open(open_local_file, file.urls[0])
            if opened is not None:
                return self._respond_from(opened, file, range_)
        return None

    def _respond_from(self, opened: OpenFile, file: PackageFile, range_: str | None) -> Response:
        self._counters.hits += 1
        try:
            part = parse_range(range_, opened.size_bytes)
        except HttpError:
            opened.close()
            raise
        start, length = (part.start, part.length) if part else (0, opened.size_bytes)

        async def body() -> AsyncGenerator[bytes, None]:
            offset = start
            while offset < start + length:
                piece = await self._threads.run(opened.read, min(PIECE_BYTES, start + length - offset), offset)
                if not piece:
                    return
                offset += len(piece)
                yield piece

        async def close() -> None:
            opened.close()

        headers = (*file.headers, *_content_range(part, opened.size_bytes))
        return Response(_PARTIAL if part else _OK, headers, length, body, close)

    async def _respond_to_head(self, file: PackageFile, upstream: Upstream) -> Response:
        """Return the response to a HEAD request. Upstream gets a GET request, because signed URLs of upstream may be valid for GET only."""
        for number, url in enumerate(file.urls, 1):
            try:
                async with upstream.get(url, {"Accept-Encoding": "identity"}) as response:
                    check_has_file(response)
                    return Response(_OK, file.headers, response.length, bytes_response(_OK, b"", "").body)
            except (NotFoundError, UpstreamError):
                if number == len(file.urls):
                    raise
        raise NotFoundError

    async def _download(self, file: PackageFile, upstream: Upstream, request: PackageFileRequest) -> Response:
        download = self._join(file, upstream)
        try:
            # A range is sent only after the whole file is verified. Otherwise, a client could get almost all of a wrong file by range requests.
            length = await (download.wait_until_complete() if request.range_ else download.wait_for_length())
            part = parse_range(request.range_, length) if request.range_ and length is not None else None
        except NotStorableError:
            await download.leave()
            return await self._pass_through.respond(file, upstream, request.sandbox)
        except BaseException:
            await download.leave()
            raise
        start, size = (part.start, part.length) if part else (0, length)

        async def body() -> AsyncGenerator[bytes, None]:
            given = 0
            try:
                async with aclosing(download.pieces(start, size)) as pieces:
                    async for piece in pieces:
                        given += len(piece)
                        yield piece
            except NotStorableError:
                try:
                    async with aclosing(self._pass_through.pieces(file, upstream, sandbox=request.sandbox, skip=start + given)) as pieces:
                        async for piece in pieces:
                            yield piece
                except NotFoundError:
                    raise UpstreamError(f"upstream removed {redacted(file.urls[0])} while the file was being sent to a sandbox") from None

        headers = (*file.headers, *_content_range(part, length))
        return Response(_PARTIAL if part else _OK, headers, size, body, _leave_once(download))

    async def _wait_until_stored(self, file: PackageFile) -> None:
        """If a download has received all bytes of this file, wait until the download has written the file to the store.

        A request for a reload must not join such a download, and other requests must not get the older file that the download will replace.
        """
        download = self._downloads.get(file.stored_as) if file.stored_as is not None else None
        if download is not None and download.is_complete and download.task is not None:
            await asyncio.wait({download.task})

    def _is_downloading(self, file: PackageFile) -> bool:
        download = self._downloads.get(file.stored_as) if file.stored_as is not None else None
        return download is not None and not download.is_over

    def _join(self, file: PackageFile, upstream: Upstream) -> Download:
        stored_as = file.stored_as
        assert stored_as is not None  # noqa: S101 - for the type checker: respond() passes all other files through
        download = self._downloads.get(stored_as)
        if download is None or download.is_over:
            download = Download(self._wrong_urls.sort(file), upstream, self._store, self._threads, self._counters)
            self._running.add(download)
            self._downloads[stored_as] = download
            download.start(self._on_end, lambda: sum(each.is_lingering for each in self._running) < MAX_LINGERING)
        download.join()
        return download

    def _on_end(self, download: Download) -> None:
        self._running.discard(download)
        self._wrong_urls.add(download.file.digest, download.wrong_urls)
        stored_as = download.file.stored_as
        if stored_as is not None and self._downloads.get(stored_as) is download:
            del self._downloads[stored_as]


def _content_range(part: ByteRange | None, size: int | None) -> Headers:
    return (("Content-Range", f"bytes {part.start}-{part.start + part.length - 1}/{size}"),) if part else ()


def _leave_once(download: Download) -> Callable[[], Awaitable[None]]:
    has_left = False

    async def leave() -> None:
        nonlocal has_left
        if not has_left:
            has_left = True
            await download.leave()

    return leave
