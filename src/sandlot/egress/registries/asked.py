"""A request as registries see it, and what its path may be. Pure.

Law: what a sandbox writes into a path reaches upstream and the disk only as names that have been looked at, letter by letter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from sandlot.egress.answers import Refusal, Taking

TARGET_MAX = 2048
"""Bytes of a request's target."""
_SEGMENT = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Args:
        segments: Of its path, decoded; none is empty, ``.`` or ``..``, none has a backslash.
        folder: Whether the path ends with a slash.
        headers: In lower case; of one that came more than once the last.
        head: The head of the answer alone is wanted.
        sandbox: Who asks.
    """

    segments: tuple[str, ...]
    folder: bool
    headers: Mapping[str, str]
    head: bool = False
    sandbox: str = ""

    def taking(self, etag: str) -> Taking:
        """How a file is taken.

        Args:
            etag: Of the file, with its quotes.
        """
        return Taking(self.range(etag), self.head, self.sandbox)

    def range(self, etag: str) -> str | None:
        """The header ``Range``; None where it holds for another version of the file only (``If-Range``).

        Args:
            etag: Of the file, with its quotes.
        """
        condition = self.headers.get("if-range")
        return self.headers.get("range") if condition in {None, etag} else None


def segments(target: bytes) -> tuple[tuple[str, ...], bool]:
    """The path of a request's target: its segments, and whether it ends with a slash.

    Args:
        target: As it was sent; its query is of no meaning here.

    Raises:
        Refusal: 400, it is no path that anything could have.
    """
    raw = target.partition(b"?")[0]
    if len(raw) > TARGET_MAX or not raw.startswith(b"/"):
        raise Refusal(400, "That is no path of a package.")
    parts = raw[1:].split(b"/")
    folder = parts[-1] == b""
    found = []
    for part in parts[:-1] if folder else parts:
        try:
            text = unquote_to_bytes(part).decode("ascii")
        except UnicodeDecodeError:
            raise Refusal(400, "That is no path of a package.") from None
        # npm writes the slash of "@scope/name" as %2f, and nobody else has one.
        if not _SEGMENT.fullmatch(text) or "\\" in text or text in {".", ".."} or ("/" in text and not text.startswith("@")) or text.count("/") > 1:
            raise Refusal(400, "That is no path of a package.")
        found.append(text)
    return tuple(found), folder
