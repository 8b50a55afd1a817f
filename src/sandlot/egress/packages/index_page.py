"""Values that describe index pages: the inputs that a page is built from, and the record of a stored page. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_FORMAT = 2
"""Format of stored records. Raise this number when the code that builds pages changes, so that pages in existing stores are built again."""


@dataclass(frozen=True, slots=True)
class PageInput:
    """An upstream document that an index page is built from.

    Args:
        url: URL of the document.
        accept: ``Accept`` header of the request.
        is_listing: True if the URL is a folder of this machine. The input is then the list of its file names.
        is_shared: True if many pages use this document. It is then stored as an index page of its own.
    """

    url: str
    accept: str = "*/*"
    is_listing: bool = False
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class FetchedInput:
    """A fetched upstream document.

    Args:
        url: URL of the response, after redirects.
        media_type: Media type of the response, without parameters.
        body: Body of the response.
        is_flat: True if the document lists files of several packages, not of one package only.
    """

    url: str
    media_type: str
    body: bytes
    is_flat: bool = False


BuildPage = Callable[[Sequence[FetchedInput]], Mapping[str, bytes]]
"""Builds an index page from its existing inputs. Returns the content by name of the variant, or an empty mapping if the page does not exist.

Raises ValueError if an input is malformed. Must be a pure function at module level, or a ``functools.partial`` of such a function, because it runs in
a thread or in another process.
"""


@dataclass(frozen=True, slots=True)
class IndexPage:
    """An index page: its inputs and the function that builds it.

    Args:
        key: Name of the page; unique among the pages of all registries.
        inputs: Upstream documents that the page is built from.
        build: Builds the variants of the page, such as HTML and JSON, from the fetched inputs.
    """

    key: str
    inputs: tuple[PageInput, ...]
    build: BuildPage = field(compare=False)

    @property
    def record_name(self) -> str:
        """Name of the page's record in the store: SHA-256 of the key in hexadecimal."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def unmodified_page(key: str, url: str, accept: str = "*/*") -> IndexPage:
    """Return an index page whose only variant, ``body``, is the unchanged upstream document.

    Args:
        key: Name of the page; unique among the pages of all registries.
        url: URL of the document.
        accept: ``Accept`` header of the request to upstream.
    """
    return IndexPage(key, (PageInput(url, accept),), _copy_body)


def _copy_body(inputs: Sequence[FetchedInput]) -> Mapping[str, bytes]:
    return {"body": inputs[0].body}


@dataclass(frozen=True, slots=True)
class InputState:
    """Version of an upstream document from which a stored page was built.

    Args:
        url: URL of the document.
        exists: True if upstream has the document.
        etag: ``ETag`` header of the response. Empty if there was none.
        last_modified: ``Last-Modified`` header of the response. Empty if there was none.
        digest: SHA-256 of the document in hexadecimal. Empty if the document does not exist.
    """

    url: str
    exists: bool
    etag: str = ""
    last_modified: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class PageRecord:
    """Stored description of an index page.

    Args:
        checked_s: Time of the last successful check with upstream, in seconds since the epoch.
        inputs: Version of each input, in the order of the page's inputs.
        variants: SHA-256 in hexadecimal and size in bytes of the content, by name of the variant.
    """

    checked_s: float
    inputs: tuple[InputState, ...]
    variants: Mapping[str, tuple[str, int]]


def encode_record(page: IndexPage, record: PageRecord) -> bytes:
    """Encode the record of an index page as JSON, together with the key of the page."""
    fields: dict[str, Any] = {
        "format": _FORMAT,
        "key": page.key,
        "checked_s": record.checked_s,
        "inputs": [{name: getattr(state, name) for name in InputState.__slots__} for state in record.inputs],
        "variants": record.variants,
    }
    return json.dumps(fields).encode()


def decode_record(data: bytes, page: IndexPage) -> PageRecord | None:
    """Decode the record of an index page. Return None if the record is damaged, has another format, or is for another page or other inputs."""
    try:
        fields = json.loads(data)
        inputs = tuple(InputState(**state) for state in fields["inputs"])
        variants = {name: (str(digest), int(size)) for name, (digest, size) in fields["variants"].items()}
        if fields["format"] != _FORMAT or fields["key"] != page.key or [each.url for each in inputs] != [each.url for each in page.inputs]:
            return None
        return PageRecord(float(fields["checked_s"]), inputs, variants)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
