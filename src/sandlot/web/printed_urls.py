"""Search for loopback URLs in the output of programs, such as ``Local: http://localhost:5173/`` of a development server. Pure.

Invariants:
- At most ``MAX_URLS`` different URLs are found in the output of a run, and each has at most ``MAX_URL_BYTES`` bytes.
- Output is read once. Between two pieces, at most ``MAX_URL_BYTES`` bytes are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sandlot.model.specs import KIB

MAX_URLS: Final = 10
MAX_URL_BYTES: Final = 2 * KIB
EDGE_CHARACTERS: Final = 64 * KIB
"""Length of the beginning and of the end of complete output that are searched. Servers print their URL when they start."""

_DEFAULT_PORT = 80
_MAX_PORT = 65535
_URL = re.compile(
    rb"(?<![\w.-])http://(?:localhost|127(?:\.[0-9]{1,3}){3}|0\.0\.0\.0|\[::1?\])(?::([0-9]{1,5}))?([/?#][!#-&*-;=?-Z\\^_a-z|~%]*)?(?![\w:@]|[.-]\w)",
    re.IGNORECASE,
)
"""URL with the port and what follows. Brackets, quotes and ``<``, ``>`` and backquotes end a URL: programs print them around it."""
_COLOR = re.compile(rb"\x1b\[[0-9;:]*m")
"""Escape sequence of a color or a weight (ECMA-48, 8.3.117), which Vite prints within its URL."""
_PUNCTUATION = b".,;:!?*"
"""Characters at the end of a URL that belong to the sentence around it."""


@dataclass(frozen=True, slots=True)
class LoopbackUrl:
    """A URL by which a program names a port of its sandbox.

    Args:
        url: The URL as printed, without colors.
        port: Port, 1 to 65,535.
        target: Path, query and fragment; empty if the URL ends with the port.
    """

    url: str
    port: int
    target: str


class LoopbackUrlScanner:
    """Finds the loopback URLs in the output of one run, each once.

    Args:
        channels: Streams of the output. A URL does not continue from one stream to another.
    """

    __slots__ = ("_found", "_rest")

    def __init__(self, channels: tuple[int, ...] = (0,)) -> None:
        self._rest = dict.fromkeys(channels, b"")
        """Channel -> last line so far, in which a URL may be incomplete."""
        self._found: set[str] = set()

    def feed(self, data: bytes, channel: int = 0) -> list[LoopbackUrl]:
        """Return the URLs that the next bytes complete."""
        if len(self._found) == MAX_URLS:
            return []
        data = self._rest[channel] + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r"), data.rfind(b" ")) + 1
        self._rest[channel] = data[max(end, len(data) - MAX_URL_BYTES) :]
        return self._search(data[:end])

    def skip(self, channel: int = 0) -> None:
        """Drop the last line so far, because bytes are missing after it."""
        self._rest[channel] = b""

    def end(self) -> list[LoopbackUrl]:
        """Return the URLs at the ends of the streams."""
        urls = [url for rest in self._rest.values() for url in self._search(rest)]
        self._rest = dict.fromkeys(self._rest, b"")
        return urls

    def _search(self, data: bytes) -> list[LoopbackUrl]:
        if b"://" not in data:
            return []
        urls = []
        for match in _URL.finditer(_COLOR.sub(b"", data)):
            url = _url(match)
            if url is not None and url.url not in self._found and len(self._found) < MAX_URLS:
                self._found.add(url.url)
                urls.append(url)
        return urls


def find_loopback_urls(*texts: str) -> list[LoopbackUrl]:
    """Return the loopback URLs in complete output, each once.

    Args:
        texts: The streams of the output. Of a long text, the beginning and the end are searched.
    """
    scanner = LoopbackUrlScanner()
    urls = []
    for text in texts:
        if len(text) > 2 * EDGE_CHARACTERS:
            urls += scanner.feed(text[:EDGE_CHARACTERS].encode("utf-8", "replace"))
            scanner.skip()
            text = text[-EDGE_CHARACTERS:]  # noqa: PLW2901 - the rest of the work
        urls += [*scanner.feed(text.encode("utf-8", "replace")), *scanner.end()]
    return urls


def _url(match: re.Match[bytes]) -> LoopbackUrl | None:
    printed = match[0].rstrip(_PUNCTUATION)
    port = int(match[1] or _DEFAULT_PORT)
    if not 1 <= port <= _MAX_PORT or len(printed) > MAX_URL_BYTES:
        return None
    target = (match[2] or b"").rstrip(_PUNCTUATION)
    return LoopbackUrl(printed.decode("ascii"), port, target.decode("ascii"))
