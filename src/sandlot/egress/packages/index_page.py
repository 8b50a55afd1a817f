"""Index pages as values: the inputs that a page is built from, and the record of a page in the store. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_FORMAT = 2
"""Format of records. Raise this number when pages are built differently, so that stored pages are built again."""


@dataclass(frozen=True, slots=True)
class PageInput:
    """An upstream document that a page is built from.

    Args:
        url: URL of the document.
        accept: ``Accept`` header of the request.
        is_listing: True if the URL is a folder of this machine, whose file names are the input.
        is_shared: True if many pages use this input, so that it is stored as a separate page.
    """

    url: str
    accept: str = "*/*"
    is_listing: bool = False
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class FetchedInput:
    """The content of an input.

    Args:
        url: URL of the response, after redirects.
        media_type: Media type of the response, without parameters.
        body: Body of the response.
        is_flat: True if the document lists packages of any name.
    """

    url: str
    media_type: str
    body: bytes
    is_flat: bool = False


BuildPage = Callable[[Sequence[FetchedInput]], Mapping[str, bytes]]
"""Builds the variants of a page from the inputs that exist. Returns an empty mapping if the page does not exist; raises ValueError if an input is
malformed. A pure function of a module, or a partial of one, because it runs in a thread or in another process."""


@dataclass(frozen=True, slots=True)
class IndexPage:
    """An index page and how to build it.

    Args:
        key: Unique name among the pages of all registries.
        inputs: Documents that the page is built from.
        build: Builds the page.
    """

    key: str
    inputs: tuple[PageInput, ...]
    build: BuildPage = field(compare=False)

    @property
    def record_name(self) -> str:
        """Name of the page's record in the store."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def unmodified_page(key: str, url: str, accept: str = "*/*") -> IndexPage:
    """Return a page that is served without changes, with the single variant ``body``."""
    return IndexPage(key, (PageInput(url, accept),), _copy_body)


def _copy_body(inputs: Sequence[FetchedInput]) -> Mapping[str, bytes]:
    return {"body": inputs[0].body}


@dataclass(frozen=True, slots=True)
class InputState:
    """The version of an input that a page was built from.

    Args:
        url: URL of the input.
        exists: True if upstream has the document.
        etag: ETag of the response; empty if it had none.
        last_modified: ``Last-Modified`` header of the response; empty if it had none.
        digest: SHA-256 of the body.
    """

    url: str
    exists: bool
    etag: str = ""
    last_modified: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class PageRecord:
    """Stored description of a page.

    Args:
        checked_s: Time of the last request to upstream, in seconds since the epoch.
        inputs: Versions of the inputs.
        variants: SHA-256 and size in bytes, by name of the variant.
    """

    checked_s: float
    inputs: tuple[InputState, ...]
    variants: Mapping[str, tuple[str, int]]


def encode_record(page: IndexPage, record: PageRecord) -> bytes:
    """Encode the record of a page as JSON."""
    fields: dict[str, Any] = {
        "format": _FORMAT,
        "key": page.key,
        "checked_s": record.checked_s,
        "inputs": [{name: getattr(state, name) for name in InputState.__slots__} for state in record.inputs],
        "variants": record.variants,
    }
    return json.dumps(fields).encode()


def decode_record(data: bytes, page: IndexPage) -> PageRecord | None:
    """Decode the record of a page. Return None if it has another format, is for other inputs, or was damaged by a power failure."""
    try:
        fields = json.loads(data)
        inputs = tuple(InputState(**state) for state in fields["inputs"])
        variants = {name: (str(digest), int(size)) for name, (digest, size) in fields["variants"].items()}
        if fields["format"] != _FORMAT or fields["key"] != page.key or [each.url for each in inputs] != [each.url for each in page.inputs]:
            return None
        return PageRecord(float(fields["checked_s"]), inputs, variants)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
