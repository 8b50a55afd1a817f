"""Fetching the inputs of an index page during one refresh.

Invariant: only one refresh at a time has large inputs, because building a page takes about eight times its size in memory.
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
"""Size limit of one input."""
SMALL_BYTES: Final = 4 * 1024 * 1024
"""Size above which an input is large: its refresh runs alone, and another process builds the page."""

_NO_PAGE = frozenset({403, 404, 410})
_OK, _NOT_MODIFIED, _FORBIDDEN = 200, 304, 403
_log = logging.getLogger(__name__)


class TooLargeError(UpstreamError):
    """An input exceeds :data:`MAX_BYTES`."""


@dataclass(frozen=True, slots=True)
class InputVersion:
    """The current version of an input.

    Args:
        state: Identification of the version.
        content: The content; None if upstream did not send it, because it has not changed or does not exist.
        is_changed: True if the version differs from the recorded one.
    """

    state: InputState
    content: FetchedInput | None
    is_changed: bool


class InputFetcher:
    """Fetches the inputs of one page. Use it as an async context manager for the time of a refresh.

    Args:
        upstream: Client of the registry.
        threads: Threads for folders of this machine.
        shared: Inputs that are stored as separate pages, already refreshed, by URL.
        pages: Stored pages, for the content of shared inputs.
        large: Lock that the refresh holds while it has large inputs.
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
        """True once an input is large."""

    async def __aenter__(self) -> Self:
        """Return the fetcher."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let another refresh have large inputs."""
        if self.is_large:
            self._large.release()

    async def fetch_changed(self, inputs: Sequence[PageInput], recorded: Sequence[InputState | None]) -> list[InputVersion]:
        """Return the current versions of all inputs, without the content of those that have not changed.

        Args:
            inputs: The inputs.
            recorded: Recorded version of each input, or None.

        Raises:
            UpstreamError: An input could not be fetched.
        """
        return await _gather([self._fetch(each, old) for each, old in zip(inputs, recorded, strict=True)])

    async def fetch_missing(self, inputs: Sequence[PageInput], versions: Sequence[InputVersion]) -> list[InputVersion]:
        """Return the versions with the content of inputs that exist but were not sent.

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
                    _log.warning("%s: status 403 is treated as 404: the index has no such package", redacted(each.url))
                return _missing(each, recorded)
            if response.status != _OK:
                raise UpstreamError(f"{redacted(each.url)}: status {response.status}")
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
            raise UpstreamError(f"{redacted(each.url)} was evicted from the store")
        state = InputState(each.url, exists=True, digest=digest)
        return InputVersion(state, FetchedInput(each.url, "text/html", body, is_flat=True), _is_changed(recorded, digest))

    async def _read(self, response: UpstreamResponse) -> bytes:
        pieces, size = [], 0
        async for piece in response.pieces(decoded=True):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise TooLargeError(f"{redacted(response.url)} is larger than {MAX_BYTES} bytes")
            if size > SMALL_BYTES:
                await self._wait_until_alone()
        return b"".join(pieces)

    async def _wait_until_alone(self) -> None:
        """Wait until no other refresh has large inputs. Several inputs of this page may be large."""
        async with self._acquiring:
            if not self.is_large:
                await self._large.acquire()
                self.is_large = True


async def _gather(fetches: Sequence[Coroutine[Any, Any, InputVersion]]) -> list[InputVersion]:
    """Wait for all fetches, then raise the first error."""
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
    """Return the names of the files in a folder of this machine as JSON. A folder that cannot be listed counts as empty, as with pip."""
    try:
        with os.scandir(local_path(url)) as entries:
            return json.dumps(sorted(entry.name for entry in entries if entry.is_file())).encode()
    except OSError as error:
        _log.warning("%s cannot be listed: %s", redacted(url), error.strerror)
        return b"[]"
