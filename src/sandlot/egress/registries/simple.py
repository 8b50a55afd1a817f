"""Pages of Python's simple indexes: HTML (PEP 503) and JSON (PEP 691) in, one list of files out. Pure.

Laws:
- What a page says of a file is kept: yanked (PEP 592), requires-python (PEP 345, 503), core-metadata (PEP 658, 714), size and upload-time
  (PEP 700). Links to signatures and provenance are not, because they lead out.
- No link here has a user or a password: what an index writes into its links is in no file of the cache, and the machine's own goes to its hosts.
- Of several indexes that have one file the first one's word holds; the same bytes elsewhere are another place to fetch them from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from sandlot.egress.digests import Digest, of_hashes
from sandlot.egress.pages import Got
from sandlot.egress.sources.values import parted

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
ACCEPT = f"{JSON_TYPE}, {HTML_TYPE};q=0.2, text/html;q=0.1"

_ARCHIVES = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar", ".tbz", ".txz")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_FILE = re.compile(r"[A-Za-z0-9][\x21-\x2e\x30-\x5b\x5d-\x7e]{0,250}")
"""What is printed, without slash and backslash."""


@dataclass(frozen=True, slots=True)
class SimpleFile:
    """One file of a project.

    Args:
        filename: Its name.
        urls: Where it is.
        hashes: Algorithm -> hexadecimal.
        requires_python: A specifier; None if it says nothing.
        yanked: The reason, or True; False if it is not.
        metadata: The hashes of its metadata beside it, or True if there is some without; None if there is none.
        size: In bytes; None if nobody says.
        upload_time: ISO 8601; None if nobody says.
    """

    filename: str
    urls: tuple[str, ...]
    hashes: Mapping[str, str]
    requires_python: str | None = None
    yanked: str | bool = False
    metadata: Mapping[str, str] | bool | None = None
    size: int | None = None
    upload_time: str | None = None

    @property
    def digest(self) -> Digest | None:
        """What it has to be; None if nobody vouches for it."""
        return of_hashes(self.hashes)


def is_name(text: str) -> bool:
    """Whether that can be a project's name (PEP 508)."""
    return _NAME.fullmatch(text) is not None


def normalized(name: str) -> str:
    """A project's name as paths have it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(pages: Iterable[Got], project: str) -> tuple[list[SimpleFile], list[str] | None]:
    """All files of a project, and its versions where every index tells them.

    Args:
        pages: The indexes' pages, the first one's word first.
        project: The normalized name.

    Raises:
        ValueError: A page makes no sense.
    """
    files: dict[str, SimpleFile] = {}
    versions: dict[str, None] | None = {}
    for page in pages:
        found, told = _of_page(page)
        own = [each for each in found if _FILE.fullmatch(each.filename) and (not page.flat or _belongs(each.filename, project))]
        if own or told:
            versions = None if told is None or versions is None else versions | dict.fromkeys(told)
        for each in own:
            known = files.setdefault(each.filename, each)
            if known is not each and known.digest is not None and known.digest == each.digest:
                # What lies on this machine costs no request.
                urls = sorted({*known.urls, *each.urls}, key=lambda url: (not url.startswith("file:"), url))
                files[each.filename] = replace(known, urls=tuple(urls))
    return list(files.values()), None if versions is None else list(versions)


def _of_page(page: Got) -> tuple[list[SimpleFile], list[str] | None]:
    if page.media_type in {JSON_TYPE, "application/json"}:
        words = json.loads(page.body)
        if isinstance(words, list):
            names = [name for name in words if isinstance(name, str)]
            return [SimpleFile(name, (urljoin(page.url, quote(name)),), {}) for name in names], None
        return _of_json(words, page.url)
    return _of_html(page.body.decode("utf-8", "replace"), page.url), None


def _of_json(words: object, base: str) -> tuple[list[SimpleFile], list[str] | None]:
    if not isinstance(words, dict) or not isinstance(words.get("files"), list):
        raise ValueError("not a page of a simple index")  # noqa: TRY004 - what is there makes no sense, whatever its type
    files = []
    for each in words["files"]:
        if not isinstance(each, dict):
            continue
        url = _fetchable(base, each.get("url"))
        filename, size, uploaded = each.get("filename"), each.get("size"), each.get("upload-time")
        if url is None or not isinstance(filename, str):
            continue
        metadata = each.get("core-metadata", each.get("dist-info-metadata", each.get("data-dist-info-metadata")))
        yanked = each.get("yanked", False)
        files.append(
            SimpleFile(
                filename,
                (url,),
                _hashes(each.get("hashes")),
                requires_python=_text(each.get("requires-python")),
                yanked=yanked if isinstance(yanked, str | bool) else False,
                metadata=(_hashes(metadata) or True) if isinstance(metadata, dict) else True if metadata is True else None,
                size=size if type(size) is int and size >= 0 else None,
                upload_time=_text(uploaded),
            )
        )
    versions = words.get("versions")
    return files, [version for version in versions if isinstance(version, str)] if isinstance(versions, list) else None


def _of_html(text: str, base: str) -> list[SimpleFile]:
    anchors = _Anchors()
    anchors.feed(text)
    anchors.close()
    files = []
    for attributes in anchors.found:
        url = _fetchable(urljoin(base, anchors.base), attributes.get("href"))
        if url is None:
            continue
        plain, fragment = urldefrag(url)
        metadata = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata"))
        algorithm, equals, value = (metadata or "").partition("=")
        hash_name, hash_equals, hash_value = fragment.partition("&")[0].partition("=")
        yanked = "data-yanked" in attributes
        files.append(
            SimpleFile(
                unquote(urlsplit(plain).path.rpartition("/")[2]),
                (plain,),
                {hash_name: hash_value.lower()} if hash_equals else {},
                requires_python=attributes.get("data-requires-python") or None,
                yanked=(attributes.get("data-yanked") or True) if yanked else False,
                metadata=None if metadata is None or metadata == "false" else {algorithm: value.lower()} if equals else True,
            )
        )
    return files


class _Anchors(HTMLParser):
    """Collects the attributes of every link."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One tag."""
        if tag == "a":
            self.found.append(dict(attrs))
        elif tag == "base" and not self.base:
            self.base = dict(attrs).get("href") or ""


def _fetchable(base: str, href: object) -> str | None:
    """A link's target; None unless it can be fetched: a page that came over a network never leads to this machine's files."""
    if not isinstance(href, str) or not href:
        return None
    try:
        url, _ = parted(urljoin(base, href.strip()))
        scheme = urlsplit(url).scheme
    except ValueError:
        return None
    return url if scheme in {"http", "https"} or (scheme == "file" and base.startswith("file:")) else None


def _hashes(words: object) -> dict[str, str]:
    return {name: value.lower() for name, value in words.items() if isinstance(value, str)} if isinstance(words, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _belongs(filename: str, project: str) -> bool:
    """Whether a file, to go by its name, is one of that project's."""
    if filename.endswith(".whl"):
        return normalized(filename.partition("-")[0]) == project
    stem = next((filename[: -len(each)] for each in _ARCHIVES if filename.endswith(each)), None)
    if stem is None:
        return False
    # An sdist's name may hold dashes; its version begins after one, with a digit.
    return any(normalized(stem[: found.start()]) == project for found in re.finditer(r"-(?=v?\d)", stem))
