"""Generator for the project pages that sandboxes get (HTML and JSON), and for a table of the upstream files of a project. Pure.

Invariant: every link leads to the package cache. A link, ``../../files/PROJECT/DIGEST/METADATA/FILENAME``, contains the digests of the file and of
its metadata, so that a stored file is found by the link alone. Only the table, which no client gets, contains upstream URLs.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from sandlot.egress.packages.digests import Digest, digest_from_hashes, parse_digest
from sandlot.egress.packages.index_page import FetchedInput
from sandlot.egress.packages.registries import pypi_index
from sandlot.egress.packages.registries.pypi_index import IndexFile

NO_DIGEST = "unknown"
"""Text in a link that replaces a digest if no index names one."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """Row of the table of upstream files: the upstream URLs and digests of one file.

    Args:
        urls: Upstream URLs of the file.
        digest: Digest of the file. None if no index names a digest.
        metadata: Digest of the separate metadata file (PEP 658). None if no index names a digest.
        has_metadata: True if upstream has a separate metadata file.
    """

    urls: tuple[str, ...]
    digest: Digest | None
    metadata: Digest | None
    has_metadata: bool


def build_pages(inputs: Sequence[FetchedInput], *, project: str) -> Mapping[str, bytes]:
    """Build the variants ``json``, ``html`` and ``table`` of a project page. Return an empty mapping if no index has a file of the project.

    Args:
        inputs: Fetched pages of the upstream indexes. Earlier pages take precedence.
        project: Normalized name of the project.

    Raises:
        ValueError: A page is malformed.
    """
    files, versions = pypi_index.parse_pages(inputs, project)
    if not files:
        return {}
    return {"json": as_json(project, files, versions), "html": as_html(project, files), "table": as_table(files)}


def as_json(project: str, files: Sequence[IndexFile], versions: Sequence[str] | None) -> bytes:
    """Return the project page as JSON (PEP 691).

    Args:
        project: Normalized name of the project.
        files: Files of the project.
        versions: Versions of the project. None if not every index lists them; the page then has no ``versions``.
    """
    is_complete = versions is not None and all(file.size is not None for file in files)  # version 1.1 (PEP 700) requires versions and sizes
    page: dict[str, Any] = {"meta": {"api-version": "1.1" if is_complete else "1.0"}, "name": project}
    if versions is not None:
        page["versions"] = list(versions)
    page["files"] = [_json_file(project, file) for file in files]
    return json.dumps(page, separators=(",", ":")).encode()


def as_html(project: str, files: Sequence[IndexFile]) -> bytes:
    """Return the project page as HTML (PEP 503).

    Args:
        project: Normalized name of the project.
        files: Files of the project.
    """
    lines = [
        '<!DOCTYPE html><html><head><meta name="pypi:repository-version" content="1.0">',
        f"<title>Links for {project}</title></head><body><h1>Links for {project}</h1>",
    ]
    for file in files:
        attributes = {}
        if file.requires_python:
            attributes["data-requires-python"] = file.requires_python
        if file.yanked is not False:
            attributes["data-yanked"] = file.yanked if isinstance(file.yanked, str) else ""
        if file.metadata is not None:
            digest = _metadata_digest(file)
            attributes["data-core-metadata"] = attributes["data-dist-info-metadata"] = f"{digest.algorithm}={digest.value}" if digest else "true"
        fragment = f"#{file.digest.algorithm}={file.digest.value}" if file.digest else ""
        attribute_text = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
        lines.append(f'<a href="{html.escape(_link(project, file) + fragment)}"{attribute_text}>{html.escape(file.filename)}</a><br>')
    lines.append("</body></html>\n")
    return "\n".join(lines).encode()


def as_table(files: Sequence[IndexFile]) -> bytes:
    """Return the table of upstream files. Each line has the name of a file, a tab, and the fields of its :class:`FileSource` as a JSON list."""
    lines = [b""]
    for file in files:
        metadata = _metadata_digest(file)
        source = [list(file.urls), file.digest and str(file.digest), metadata and str(metadata), file.metadata is not None]
        lines.append(f"{file.filename}\t{json.dumps(source)}".encode())
    return b"\n".join([*lines, b""])


def find_source(table: bytes, filename: str) -> FileSource | None:
    """Return the upstream URLs and digests of a file. Return None if the table does not contain the file.

    Args:
        table: Variant ``table`` that :func:`build_pages` returned.
        filename: Name of the file.
    """
    start = table.find(f"\n{filename}\t".encode())
    if start < 0:
        return None
    urls, digest, metadata, has_metadata = json.loads(table[table.index(b"\t", start) : table.index(b"\n", start + 1)])
    return FileSource(tuple(urls), parse_digest(digest) if digest else None, parse_digest(metadata) if metadata else None, has_metadata)


def _json_file(project: str, file: IndexFile) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "filename": file.filename,
        "url": _link(project, file),
        "hashes": {file.digest.algorithm: file.digest.value} if file.digest else {},
        "yanked": file.yanked,
    }
    if file.requires_python:
        fields["requires-python"] = file.requires_python
    if file.metadata is not None:
        digest = _metadata_digest(file)
        fields["core-metadata"] = fields["dist-info-metadata"] = {digest.algorithm: digest.value} if digest else True
    if file.size is not None:
        fields["size"] = file.size
    if file.upload_time:
        fields["upload-time"] = file.upload_time
    return fields


def _metadata_digest(file: IndexFile) -> Digest | None:
    return None if file.metadata is None or isinstance(file.metadata, bool) else digest_from_hashes(file.metadata)


def _link(project: str, file: IndexFile) -> str:
    return f"../../files/{project}/{file.digest or NO_DIGEST}/{_metadata_digest(file) or NO_DIGEST}/{quote(file.filename)}"
