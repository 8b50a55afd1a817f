"""Npm's packuments: what a registry says of a package and its versions. Pure.

What is in one: npm's "Package Metadata" (github.com/npm/registry, docs/responses/package-metadata.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from sandlot.egress.digests import Digest, of_integrity, of_token
from sandlot.egress.pages import Got
from sandlot.egress.sources.values import parted

SHORT_TYPE = "application/vnd.npm.install-v1+json"
ACCEPT_SHORT = f"{SHORT_TYPE}; q=1.0, application/json; q=0.8, */*"
ACCEPT_FULL = "application/json"

_PACKAGE = re.compile(r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*")
_PACKAGE_MAX = 214
_SHORT_VERSION = (
    "name", "version", "deprecated", "dependencies", "optionalDependencies", "devDependencies", "bundleDependencies", "bundledDependencies",
    "peerDependencies", "peerDependenciesMeta", "acceptDependencies", "bin", "directories", "dist", "engines", "cpu", "os", "libc", "funding",
    "hasInstallScript", "_hasShrinkwrap",
)  # fmt: skip
_INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")


def is_package(name: str) -> bool:
    """Whether that can be a package's name; old ones have capitals."""
    return len(name) <= _PACKAGE_MAX and _PACKAGE.fullmatch(name) is not None


def path_of(name: str) -> str:
    """A package's name as npm writes it into a path."""
    return quote(name, safe="@")


def make(got: Sequence[Got], *, name: str, origin: str, short: bool) -> Mapping[str, bytes]:
    """What is served of a packument (``body``), and where its files come from (``table``).

    Args:
        got: It alone, as upstream has it.
        name: The package.
        origin: Where this cache is found.
        short: Whether the abbreviated one is wanted; a registry may not know of it, and is abbreviated here then.

    Raises:
        ValueError: It makes no sense.
    """
    (page,) = got
    words = json.loads(page.body)
    if not isinstance(words, dict) or not isinstance(words.get("versions"), dict):
        raise ValueError("not a packument")  # noqa: TRY004 - what is there makes no sense, whatever its type
    lines: dict[str, str] = {}
    others: dict[str, str] = {}
    for version, manifest in words["versions"].items():
        dist = manifest.get("dist") if isinstance(manifest, dict) else None
        if not isinstance(dist, dict) or not isinstance(dist.get("tarball"), str):
            continue
        url = _fetchable(page.url, dist["tarball"])
        if url is None:
            del dist["tarball"]  # it may hold a password as well
            continue
        digest = of_integrity(dist.get("integrity"), dist.get("shasum"))
        file = f"{name.rpartition('/')[2]}-{version}.tgz"
        place = json.dumps([url, digest and str(digest)])
        lines[file] = place
        others.setdefault(unquote(urlsplit(url).path.rpartition("/")[2]), place)  # what lock files have that were made elsewhere
        dist["tarball"] = f"{origin}/npm/{quote(name, safe='@/')}/-/{quote(file)}"
    if short and page.media_type != SHORT_TYPE:
        words = _abbreviated(words)
    table = "".join(f"\n{file}\t{place}" for file, place in (others | lines).items() if file.isprintable())
    return {"body": json.dumps(words, separators=(",", ":")).encode(), "table": f"{table}\n".encode()}


def find(table: bytes, file: str) -> tuple[str, Digest | None] | None:
    """Where a file comes from and what it has to be; None if the table does not have it."""
    start = table.find(f"\n{file}\t".encode())
    if start < 0:
        return None
    url, digest = json.loads(table[table.index(b"\t", start) : table.index(b"\n", start + 1)])
    return url, of_token(digest) if digest else None


def _fetchable(base: str, link: str) -> str | None:
    """Where a link leads, without a user or a password that a registry may write into it; None where nobody can fetch that."""
    try:
        url, _ = parted(urljoin(base, link))
        return url if urlsplit(url).scheme in {"http", "https"} else None
    except ValueError:
        return None


def _abbreviated(words: Mapping[str, Any]) -> dict[str, Any]:
    """The form that installing needs; for some packages a tenth of the whole."""
    versions = {}
    for version, manifest in words["versions"].items():
        if not isinstance(manifest, dict):
            continue
        kept = {name: manifest[name] for name in _SHORT_VERSION if name in manifest}
        scripts = manifest.get("scripts")
        if isinstance(scripts, dict) and any(scripts.get(name) for name in _INSTALL_SCRIPTS):
            kept["hasInstallScript"] = True
        versions[version] = kept
    time = words.get("time")
    modified = words.get("modified") or (time.get("modified") if isinstance(time, dict) else None)
    return {
        "name": words.get("name"),
        "dist-tags": words.get("dist-tags", {}),
        "versions": versions,
        **({"modified": modified} if modified else {}),
    }
