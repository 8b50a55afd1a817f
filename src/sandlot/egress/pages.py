"""Index pages as values: what one is made of, and what is written down of it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_GENERATION = 1
"""Of what is written down: raise it when pages are made in another way."""


@dataclass(frozen=True, slots=True)
class Input:
    """What a page is made of.

    Args:
        url: Where it is.
        accept: The header ``Accept``.
        listing: It is a folder of this machine, and its file names are wanted.
        shared: It is an input of many pages, and kept as a page of its own.
    """

    url: str
    accept: str = "*/*"
    listing: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Got:
    """An input as it came.

    Args:
        url: Who answered, after redirects.
        media_type: What it says that it is, without parameters.
        body: It.
        flat: It tells of packages of any name.
    """

    url: str
    media_type: str
    body: bytes
    flat: bool = False


Make = Callable[[Sequence[Got]], Mapping[str, bytes]]
"""Makes the variants of a page out of its inputs, those that are there; none where there is no such page. Pure; called in a thread, or in
another process: it is a function of a module, or a partial of one. ValueError: they make no sense."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page and how it comes to be.

    Args:
        key: Its name among all pages of all registries.
        inputs: What it is made of.
        make: Makes it.
    """

    key: str
    inputs: tuple[Input, ...]
    make: Make = field(compare=False)

    @property
    def name(self) -> str:
        """Of its file on the shelf."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def whole(key: str, url: str, accept: str = "*/*") -> Page:
    """A page that is served as upstream has it, as variant ``body``."""
    return Page(key, (Input(url, accept),), _as_it_is)


def _as_it_is(got: Sequence[Got]) -> Mapping[str, bytes]:
    return {"body": got[0].body}


@dataclass(frozen=True, slots=True)
class State:
    """What is known of an input.

    Args:
        url: Where it is.
        there: Whether there is one.
        etag: What identifies it upstream; empty where nothing does.
        modified: When it last changed, as upstream says it.
        digest: SHA-256 of it.
    """

    url: str
    there: bool
    etag: str = ""
    modified: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a page.

    Args:
        checked_s: When upstream was last asked, seconds since the epoch.
        inputs: What it is made of.
        variants: Name -> SHA-256 and size in bytes.
    """

    checked_s: float
    inputs: tuple[State, ...]
    variants: Mapping[str, tuple[str, int]]


def written(page: Page, known: Known) -> bytes:
    """What is known of a page, to be written down."""
    words: dict[str, Any] = {
        "generation": _GENERATION,
        "key": page.key,
        "checked": known.checked_s,
        "inputs": [{name: getattr(each, name) for name in State.__slots__} for each in known.inputs],
        "variants": known.variants,
    }
    return json.dumps(words).encode()


def parsed(data: bytes, page: Page) -> Known | None:
    """What was written of a page; None if it was by another version, for another configuration, or torn when the power failed."""
    try:
        words = json.loads(data)
        inputs = tuple(State(**each) for each in words["inputs"])
        variants = {name: (str(digest), int(size)) for name, (digest, size) in words["variants"].items()}
        if words["generation"] != _GENERATION or words["key"] != page.key or [each.url for each in inputs] != [each.url for each in page.inputs]:
            return None
        return Known(float(words["checked"]), inputs, variants)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
