"""Parser for pages of Python's simple indexes, HTML (PEP 503) and JSON (PEP 691). Pure.

Invariants:
- These attributes of a file are kept: yanked (PEP 592), requires-python (PEP 345, 503), core-metadata (PEP 658, 714), size and upload-time
  (PEP 700). Links to signatures and provenance are dropped, because they lead to other hosts.
- No returned URL contains a user or a password. Credentials in the links of an index are dropped.
- If several indexes have a file, its attributes are taken from the first of these indexes. The file's URL at another index is added if this index
  states the same digest for the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

from sandlot.egress.packages.config.values import split_credential
from sandlot.egress.packages.digests import Digest, digest_from_hashes
from sandlot.egress.packages.index_page import FetchedInput

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "application/vnd.pypi.simple.v1+html"
ACCEPT = f"{JSON_TYPE}, {HTML_TYPE};q=0.2, text/html;q=0.1"

_ARCHIVES = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz", ".tar", ".tbz", ".txz")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_FILENAME = re.compile(r"[A-Za-z0-9][\x21-\x2e\x30-\x5b\x5d-\x7e]{0,250}")
"""Letter or digit, then up to 251 printable ASCII characters without slash and backslash."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a Python project, as the upstream indexes describe it.

    Args:
        filename: Name of the file, without folders.
        urls: Upstream URLs of the file. All have the same content.
        hashes: Hexadecimal digest by algorithm.
        requires_python: Version specifier of the supported Python versions. None if the index names none.
        yanked: Reason why the file was yanked, or True if no reason is known. False if the file was not yanked.
        metadata: Hexadecimal digest by algorithm of the separate metadata file (PEP 658), or True if the index names no digest. None if there is
            no metadata file.
        size: Size in bytes. None if the index names no size.
        upload_time: Time of the upload in ISO 8601. None if the index names no time.
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
        """Digest of the file. None if the index names no usable digest."""
        return digest_from_hashes(self.hashes)


def is_project_name(text: str) -> bool:
    """Return whether a text can be the name of a Python project (PEP 508)."""
    return _NAME.fullmatch(text) is not None


def normalize(name: str) -> str:
    """Return the normalized name of a Python project, which is used in URLs (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_pages(pages: Iterable[FetchedInput], project: str) -> tuple[list[IndexFile], list[str] | None]:
    """Return all files of a project and the list of its versions. The list of versions is None if an index has files of the project but no such list.

    Args:
        pages: Fetched pages of the upstream indexes. Earlier pages take precedence.
        project: Normalized name of the project.

    Raises:
        ValueError: A page is malformed.
    """
    files: dict[str, IndexFile] = {}
    versions: dict[str, None] | None = {}
    for page in pages:
        found, listed = _parse_page(page)
        own = [file for file in found if _FILENAME.fullmatch(file.filename) and (not page.is_flat or _belongs_to(file.filename, project))]
        if own or listed:
            versions = None if listed is None or versions is None else versions | dict.fromkeys(listed)
        for file in own:
            known = files.setdefault(file.filename, file)
            if known is not file and known.digest is not None and known.digest == file.digest:
                # URLs of files on this machine come first, because they need no request.
                urls = sorted({*known.urls, *file.urls}, key=lambda url: (not url.startswith("file:"), url))
                files[file.filename] = replace(known, urls=tuple(urls))
    return list(files.values()), None if versions is None else list(versions)


def _parse_page(page: FetchedInput) -> tuple[list[IndexFile], list[str] | None]:
    if page.media_type in {JSON_TYPE, "application/json"}:
        content = json.loads(page.body)
        if isinstance(content, list):
            names = [name for name in content if isinstance(name, str)]
            return [IndexFile(name, (urljoin(page.url, quote(name)),), {}) for name in names], None
        return _parse_json(content, page.url)
    return _parse_html(page.body.decode("utf-8", "replace"), page.url), None


def _parse_json(content: object, base: str) -> tuple[list[IndexFile], list[str] | None]:
    if not isinstance(content, dict) or not isinstance(content.get("files"), list):
        raise ValueError("not a page of a simple index: `files` is missing or is not a list")  # noqa: TRY004 - the content is malformed, whatever its type
    files = []
    for each in content["files"]:
        if not isinstance(each, dict):
            continue
        url = _fetchable_url(base, each.get("url"))
        filename, size, uploaded = each.get("filename"), each.get("size"), each.get("upload-time")
        if url is None or not isinstance(filename, str):
            continue
        metadata = each.get("core-metadata", each.get("dist-info-metadata", each.get("data-dist-info-metadata")))
        yanked = each.get("yanked", False)
        files.append(
            IndexFile(
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
    versions = content.get("versions")
    return files, [version for version in versions if isinstance(version, str)] if isinstance(versions, list) else None


def _parse_html(text: str, base: str) -> list[IndexFile]:
    parser = _LinkParser()
    parser.feed(text)
    parser.close()
    files = []
    for attributes in parser.links:
        url = _fetchable_url(urljoin(base, parser.base), attributes.get("href"))
        if url is None:
            continue
        plain, fragment = urldefrag(url)
        metadata = attributes.get("data-core-metadata", attributes.get("data-dist-info-metadata"))
        algorithm, equals, value = (metadata or "").partition("=")
        hash_name, hash_equals, hash_value = fragment.partition("&")[0].partition("=")
        yanked = "data-yanked" in attributes
        files.append(
            IndexFile(
                unquote(urlsplit(plain).path.rpartition("/")[2]),
                (plain,),
                {hash_name: hash_value.lower()} if hash_equals else {},
                requires_python=attributes.get("data-requires-python") or None,
                yanked=(attributes.get("data-yanked") or True) if yanked else False,
                metadata=None if metadata is None or metadata == "false" else {algorithm: value.lower()} if equals else True,
            )
        )
    return files


class _LinkParser(HTMLParser):
    """Parser that stores the attributes of each link in the list ``links``, and the URL of the first ``<base>`` element in ``base``."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[dict[str, str | None]] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the attributes of an opening tag ``<a>`` or ``<base>``."""
        if tag == "a":
            self.links.append(dict(attrs))
        elif tag == "base" and not self.base:
            self.base = dict(attrs).get("href") or ""

    def parse_marked_section(self, i: int, report: bool = True) -> int:  # noqa: FBT001, FBT002 - HTMLParser's
        """Skip a marked section. Treat a section that Python cannot parse, such as ``<![a``, as a comment, as browsers do."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i, report=False)


def _fetchable_url(base: str, href: object) -> str | None:
    """Return the absolute URL of a link, or None if it may not be fetched: a page from the network must not link to files of this machine."""
    if not isinstance(href, str) or not href:
        return None
    try:
        url, _ = split_credential(urljoin(base, href.strip()))
        scheme = urlsplit(url).scheme
    except ValueError:
        return None
    return url if scheme in {"http", "https"} or (scheme == "file" and base.startswith("file:")) else None


def _hashes(content: object) -> dict[str, str]:
    return {name: value.lower() for name, value in content.items() if isinstance(value, str)} if isinstance(content, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _belongs_to(filename: str, project: str) -> bool:
    """Return whether the name of a file is that of a wheel or source archive of a project.

    Args:
        filename: Name of the file.
        project: Normalized name of the project.
    """
    if filename.endswith(".whl"):
        return normalize(filename.partition("-")[0]) == project
    stem = next((filename[: -len(each)] for each in _ARCHIVES if filename.endswith(each)), None)
    if stem is None:
        return False
    # The project name in a source archive's name may contain dashes. The version begins after a dash, with a digit or with "v" and a digit.
    return any(normalize(stem[: found.start()]) == project for found in re.finditer(r"-(?=v?\d)", stem))
