"""Fetches the inputs of one index page during a refresh.

Invariant: only one refresh at a time has large inputs, because building a page takes about eight times the size of its inputs in memory.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from sandlot.egress.packages.config.values import redacted
from sandlot.egress.packages.index_page import FetchedInput, InputState, PageInput
from sandlot.egress.packages.index_page_store import CachedPage, IndexPageStore
from sandlot.egress.packages.store.open_files import OpenFile
from sandlot.egress.packages.upstream import Upstream, UpstreamError, UpstreamResponse, local_path
from sandlot.host.blocking import BlockingPool

MAX_BYTES: Final = 48 * 1024 * 1024
"""Maximum size of one input, in bytes."""
SMALL_BYTES: Final = 4 * 1024 * 1024
"""Size in bytes above which an input is large. Only one refresh at a time has large inputs, and another process builds its page."""

_NO_PAGE = frozenset({403, 404, 410})
_OK, _NOT_MODIFIED, _FORBIDDEN = 200, 304, 403
_log = logging.getLogger(__name__)


class TooLargeError(UpstreamError):
    """An input is larger than :data:`MAX_BYTES`."""


@dataclass(frozen=True, slots=True)
class InputVersion:
    """The current version of an input, as upstream reports it during a refresh.

    Args:
        state: ETag, digest and further data that identify the version.
        content: The fetched document. None if upstream did not send it: the document has not changed or does not exist.
        is_changed: True if this version differs from the version that the stored page was built from.
    """

    state: InputState
    content: FetchedInput | None
    is_changed: bool


class InputFetcher:
    """Fetches the inputs of one index page. An async context manager, to be entered for the duration of one refresh.

    Args:
        upstream: Client of the registry that the page belongs to.
        threads: Thread pool for reading folders of this machine.
        shared: Inputs that are stored as index pages of their own, by URL. They must have been refreshed.
        pages: Store of the pages, for the content of shared inputs.
        large: Lock that all refreshes share. A refresh with a large input holds the lock until the refresh ends.
    """

    def __init__(
        self, upstream: Upstream, threads: BlockingPool, shared: Mapping[str, CachedPage], pages: IndexPageStore, large: asyncio.Lock
    ) -> None:
        self._upstream = upstream
        self._threads = threads
        self._shared = shared
        self._pages = pages
        self._large = large
        self._acquiring = asyncio.Lock()
        self.is_large = False
        """True as soon as one input is known to be large."""

    async def __aenter__(self) -> Self:
        """Return this fetcher."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the lock for large inputs if this refresh has acquired it."""
        if self.is_large:
            self._large.release()

    async def fetch_changed(self, inputs: Sequence[PageInput], recorded: Sequence[InputState | None]) -> list[InputVersion]:
        """Return the current version of each input. Inputs that upstream reports as unchanged have no content.

        Args:
            inputs: Inputs of the page.
            recorded: Version of each input that the stored page was built from. None for an input without a recorded version.

        Raises:
            UpstreamError: An input could not be fetched.
        """
        return await _gather([self._fetch(each, old) for each, old in zip(inputs, recorded, strict=True)])

    async def fetch_missing(self, inputs: Sequence[PageInput], versions: Sequence[InputVersion]) -> list[InputVersion]:
        """Fetch the content of all inputs that exist but whose version has no content yet. Return the completed versions.

        Args:
            inputs: Inputs of the page.
            versions: Result of :meth:`fetch_changed` for the same inputs.

        Raises:
            UpstreamError: An input could not be fetched.
        """
        return [
            version if version.content is not None or not version.state.exists else await self._fetch(each, None)
            for each, version in zip(inputs, versions, strict=True)
        ]

    async def _fetch(self, each: PageInput, recorded: InputState | None) -> InputVersion:
        if each.is_shared:
            return await self._open_shared(each, recorded)
        if each.is_listing:
            names = await self._threads.run(_list_folder, each.url)
            digest = hashlib.sha256(names).hexdigest()
            state = InputState(each.url, exists=True, digest=digest)
            return InputVersion(state, FetchedInput(each.url, "application/json", names, is_flat=True), _is_changed(recorded, digest))
        headers = {"Accept": each.accept}
        if recorded is not None and recorded.exists:
            conditions = (("If-None-Match", recorded.etag), ("If-Modified-Since", recorded.last_modified))
            headers |= {name: value for name, value in conditions if value}
        async with self._upstream.get(each.url, headers) as response:
            if response.status == _NOT_MODIFIED and recorded is not None:
                return InputVersion(recorded, None, is_changed=False)
            if response.status in _NO_PAGE:
                if response.status == _FORBIDDEN:
                    _log.warning("%s: the response has status 403, which is treated as 404 (no such package)", redacted(each.url))
                return _missing(each, recorded)
            if response.status != _OK:
                raise UpstreamError(f"{redacted(each.url)}: the response has status {response.status}")
            body = await self._read(response)
            digest = hashlib.sha256(body).hexdigest()
            state = InputState(each.url, True, response.headers.get("etag", ""), response.headers.get("last-modified", ""), digest)
            media_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            return InputVersion(state, FetchedInput(response.url, media_type, body), _is_changed(recorded, digest))

    async def _open_shared(self, each: PageInput, recorded: InputState | None) -> InputVersion:
        page = self._shared[each.url]
        if page.is_missing:
            return _missing(each, recorded)
        digest = page.variants["body"]
        body = await self._pages.open(page, "body")
        if isinstance(body, OpenFile):
            opened = body
            try:
                if opened.size_bytes > SMALL_BYTES:
                    await self._wait_until_alone()
                body = await self._pages.read(opened, opened.size_bytes, 0)
            finally:
                opened.close()
        if body is None:
            raise UpstreamError(f"{redacted(each.url)} was evicted from the package store during a refresh")
        state = InputState(each.url, exists=True, digest=digest)
        return InputVersion(state, FetchedInput(each.url, "text/html", body, is_flat=True), _is_changed(recorded, digest))

    async def _read(self, response: UpstreamResponse) -> bytes:
        pieces, size = [], 0
        async for piece in response.pieces(decoded=True):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise TooLargeError(f"{redacted(response.url)} is larger than {MAX_BYTES} bytes, the maximum for an index page")
            if size > SMALL_BYTES:
                await self._wait_until_alone()
        return b"".join(pieces)

    async def _wait_until_alone(self) -> None:
        """Wait until no other refresh has large inputs: acquire the lock for large inputs, unless this refresh already holds it."""
        async with self._acquiring:
            if not self.is_large:
                await self._large.acquire()
                self.is_large = True


async def _gather(fetches: Sequence[Coroutine[Any, Any, InputVersion]]) -> list[InputVersion]:
    """Wait until all fetches have ended. Return their results, or raise the first error."""
    found = await asyncio.gather(*fetches, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


def _missing(each: PageInput, recorded: InputState | None) -> InputVersion:
    return InputVersion(InputState(each.url, exists=False), None, is_changed=recorded is None or recorded.exists)


def _is_changed(recorded: InputState | None, digest: str) -> bool:
    return recorded is None or recorded.digest != digest


def _list_folder(url: str) -> bytes:
    """Return the names of the files in a folder of this machine as a JSON list. The list is empty if the folder cannot be read, as in pip."""
    try:
        with os.scandir(local_path(url)) as entries:
            return json.dumps(sorted(entry.name for entry in entries if entry.is_file())).encode()
    except OSError as error:
        _log.warning("the folder %s cannot be listed and is treated as empty: %s", redacted(url), error.strerror)
        return b"[]"
