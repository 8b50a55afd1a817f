"""What is served of a Python project: its page as HTML and as JSON, and a table that finds its files again. Pure.

Law: every link leads to this cache. ``../../files/PROJECT/DIGEST/METADATA/FILENAME`` says what the file has to be and what its metadata has to
be, so that what is in the store is found by its path alone; the table, which no client sees, says where the rest comes from.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sandlot.egress.digests import Digest, of_hashes, of_token
from sandlot.egress.pages import Got
from sandlot.egress.registries import simple
from sandlot.egress.registries.simple import SimpleFile

UNKNOWN = "unknown"
"""In place of a digest that nobody gives."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file comes from.

    Args:
        urls: Where it is.
        digest: What it has to be.
        metadata: What its metadata has to be; None if nobody says.
        has_metadata: Whether there is some beside it.
    """

    urls: tuple[str, ...]
    digest: Digest | None
    metadata: Digest | None
    has_metadata: bool


def make(got: Sequence[Got], *, project: str) -> Mapping[str, bytes]:
    """What is served of a project, by what the indexes say of it: ``json``, ``html`` and the ``table``; none where there is no file.

    Args:
        got: The indexes' pages, the first one's word first.
        project: The normalized name.

    Raises:
        ValueError: A page makes no sense.
    """
    files, versions = simple.read(got, project)
    if not files:
        return {}
    return {"json": as_json(project, files, versions), "html": as_html(project, files), "table": as_table(files)}


def as_json(project: str, files: Sequence[SimpleFile], versions: Sequence[str] | None) -> bytes:
    """The page of PEP 691."""
    complete = versions is not None and all(each.size is not None for each in files)  # PEP 700 wants both
    words: dict[str, Any] = {"meta": {"api-version": "1.1" if complete else "1.0"}, "name": project}
    if versions is not None:
        words["versions"] = list(versions)
    words["files"] = [_json_file(project, each) for each in files]
    return json.dumps(words, separators=(",", ":")).encode()


def as_html(project: str, files: Sequence[SimpleFile]) -> bytes:
    """The page of PEP 503."""
    lines = [
        '<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0">',
        f"<title>Links for {project}</title></head><body><h1>Links for {project}</h1>",
    ]
    for each in files:
        attributes = {}
        if each.requires_python:
            attributes["data-requires-python"] = each.requires_python
        if each.yanked is not False:
            attributes["data-yanked"] = each.yanked if isinstance(each.yanked, str) else ""
        if each.metadata is not None:
            told = _metadata(each)
            attributes["data-core-metadata"] = attributes["data-dist-info-metadata"] = f"{told.algorithm}={told.value}" if told else "true"
        fragment = f"#{each.digest.algorithm}={each.digest.value}" if each.digest else ""
        written = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
        lines.append(f'<a href="{html.escape(_link(project, each) + fragment)}"{written}>{html.escape(each.filename)}</a><br>')
    lines.append("</body></html>\n")
    return "\n".join(lines).encode()


def as_table(files: Sequence[SimpleFile]) -> bytes:
    """One line for each file: its name, a tab, where it comes from."""
    lines = [b""]
    for each in files:
        told = _metadata(each)
        words = [list(each.urls), each.digest and str(each.digest), told and str(told), each.metadata is not None]
        lines.append(f"{each.filename}\t{json.dumps(words)}".encode())
    return b"\n".join([*lines, b""])


def find(table: bytes, filename: str) -> Place | None:
    """Where a file comes from; None if the table does not have it."""
    start = table.find(f"\n{filename}\t".encode())
    if start < 0:
        return None
    urls, digest, metadata, has_metadata = json.loads(table[table.index(b"\t", start) : table.index(b"\n", start + 1)])
    return Place(tuple(urls), of_token(digest) if digest else None, of_token(metadata) if metadata else None, has_metadata)


def _json_file(project: str, each: SimpleFile) -> dict[str, Any]:
    words: dict[str, Any] = {
        "filename": each.filename,
        "url": _link(project, each),
        "hashes": {each.digest.algorithm: each.digest.value} if each.digest else {},
        "yanked": each.yanked,
    }
    if each.requires_python:
        words["requires-python"] = each.requires_python
    if each.metadata is not None:
        told = _metadata(each)
        words["core-metadata"] = words["dist-info-metadata"] = {told.algorithm: told.value} if told else True
    if each.size is not None:
        words["size"] = each.size
    if each.upload_time:
        words["upload-time"] = each.upload_time
    return words


def _metadata(each: SimpleFile) -> Digest | None:
    return None if each.metadata is None or isinstance(each.metadata, bool) else of_hashes(each.metadata)


def _link(project: str, each: SimpleFile) -> str:
    return f"../../files/{project}/{each.digest or UNKNOWN}/{_metadata(each) or UNKNOWN}/{quote(each.filename)}"
