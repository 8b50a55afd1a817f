"""Parser and generator for npm's package metadata: the versions of a package and their files. Pure.

The format is described in npm's "Package Metadata" (github.com/npm/registry, docs/responses/package-metadata.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from sandlot.egress.packages.config.values import split_credential
from sandlot.egress.packages.digests import Digest, digest_from_integrity, parse_digest
from sandlot.egress.packages.index_page import FetchedInput

SHORT_TYPE = "application/vnd.npm.install-v1+json"
ACCEPT_SHORT = f"{SHORT_TYPE}; q=1.0, application/json; q=0.8, */*"
ACCEPT_FULL = "application/json"

_NAME = re.compile(r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*")
_MAX_NAME = 214
_SHORT_VERSION = (
    "name", "version", "deprecated", "dependencies", "optionalDependencies", "devDependencies", "bundleDependencies", "bundledDependencies",
    "peerDependencies", "peerDependenciesMeta", "acceptDependencies", "bin", "directories", "dist", "engines", "cpu", "os", "libc", "funding",
    "hasInstallScript", "_hasShrinkwrap",
)  # fmt: skip
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")


def is_package_name(name: str) -> bool:
    """Return whether a text can be the name of an npm package. Capitals are allowed, because names of old packages contain them."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def url_path(name: str) -> str:
    """Return the name of a package in the encoding that npm uses in URLs: ``@scope%2Fname``."""
    return quote(name, safe="@")


def build_metadata(inputs: Sequence[FetchedInput], *, name: str, origin: str, short: bool) -> Mapping[str, bytes]:
    """Build the two variants of a metadata page: ``body``, which is served to clients, and ``table``, which names the upstream URLs of files.

    Args:
        inputs: Exactly one input: the metadata of the upstream registry.
        name: Name of the package.
        origin: Origin of the package cache inside a sandbox (``http://HOST:PORT``). All URLs of tarballs in ``body`` begin with it.
        short: True: build npm's abbreviated form, even if upstream sent the full form. False: build the form that upstream sent.

    Raises:
        ValueError: The metadata is malformed.
    """
    (page,) = inputs
    metadata = json.loads(page.body)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("versions"), dict):
        raise ValueError("not npm package metadata: `versions` is missing or is not an object")  # noqa: TRY004 - the content is malformed, whatever its type
    lines: dict[str, str] = {}
    other_lines: dict[str, str] = {}
    for version, manifest in metadata["versions"].items():
        dist = manifest.get("dist") if isinstance(manifest, dict) else None
        if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
            continue
        url = _fetchable_url(page.url, dist["tarball"])
        if url is None:
            del dist["tarball"]  # the URL may contain a password
            continue
        digest = digest_from_integrity(dist.get("integrity"), dist.get("shasum"))
        filename = f"{name.rpartition('/')[2]}-{version}.tgz"
        location = json.dumps([url, digest and str(digest)])
        lines[filename] = location
        other_lines.setdefault(unquote(urlsplit(url).path.rpartition("/")[2]), location)  # lock files made with other registries name files by URL
        dist["tarball"] = f"{origin}/npm/{quote(name, safe='@/')}/-/{quote(filename)}"
    if short and page.media_type != SHORT_TYPE:
        metadata = _abbreviate(metadata)
    table = "".join(f"\n{filename}\t{location}" for filename, location in (other_lines | lines).items() if filename.isprintable())
    return {"body": json.dumps(metadata, separators=(",", ":")).encode(), "table": f"{table}\n".encode()}


def find_file(table: bytes, filename: str) -> tuple[str, Digest | None] | None:
    """Return the upstream URL of a file, and its digest (None if the registry names none). Return None if the table does not contain the file.

    Args:
        table: Variant ``table`` that :func:`build_metadata` returned.
        filename: Name of the file.
    """
    start = table.find(f"\n{filename}\t".encode())
    if start < 0:
        return None
    url, digest = json.loads(table[table.index(b"\t", start) : table.index(b"\n", start + 1)])
    return url, parse_digest(digest) if digest else None


def _fetchable_url(base: str, link: str) -> str | None:
    """Return the absolute URL of a link, without a user and password. Return None if the URL is neither http nor https."""
    try:
        url, _ = split_credential(urljoin(base, link))
        return url if urlsplit(url).scheme in {"http", "https"} else None
    except ValueError:
        return None


def _abbreviate(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the abbreviated form of metadata: the part that an installation needs. For some packages it has a tenth of the size of the full form."""
    versions = {}
    for version, manifest in metadata["versions"].items():
        if not isinstance(manifest, dict):
            continue
        short = {name: manifest[name] for name in _SHORT_VERSION if name in manifest}
        scripts = manifest.get("scripts")
        if isinstance(scripts, dict) and any(scripts.get(name) for name in _INSTALL_SCRIPTS):
            short["hasInstallScript"] = True
        versions[version] = short
    time = metadata.get("time")
    modified = metadata.get("modified") or (time.get("modified") if isinstance(time, dict) else None)
    return {
        "name": metadata.get("name"),
        "dist-tags": metadata.get("dist-tags", {}),
        "versions": versions,
        **({"modified": modified} if modified else {}),
    }
