"""Packages that a tree has installed: of Debian, Python and npm. Also runs as a program inside a sandbox, and then writes their descriptions as JSON.

Invariants:
- The tree is hostile: sizes and numbers of files are limited, links are not followed, and a file that cannot be read or parsed is left out.
- Only the standard library is imported, because the program runs with the interpreter of the guest, from its text.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import NamedTuple

MAX_PACKAGES = 50_000
MAX_FILE_BYTES = 64 * 1024 * 1024
"""Largest file that is read."""
MAX_ENTRIES = 5_000_000
"""Number of files and folders after which the search ends."""
MAX_LICENCES = 100
"""Largest number of licences of a package."""
MAX_CHARS = 256
"""Length above which a value is cut."""
_SKIPPED = frozenset({"proc", "sys", "dev", ".sandlot"})

Package = tuple[str, str, str]
"""Kind as in a package URL (``deb``, ``pypi`` or ``npm``), name and version."""


class Description(NamedTuple):
    """A package, and what it says about itself.

    Args:
        kind: As in :data:`Package`.
        name: As in :data:`Package`.
        version: As in :data:`Package`.
        source: Name of the source package of a package of Debian.
        source_version: Version of the source package.
        licences: Names of licences, as the package writes them. Empty if it has none that can be read by programs.
    """

    kind: str
    name: str
    version: str
    source: str = ""
    source_version: str = ""
    licences: tuple[str, ...] = ()


def installed(root: str) -> list[Package]:
    """Return the packages of a tree, sorted and without repetitions. Blocks: a tree of 35,000 files takes about a second."""
    return sorted({each[:3] for each in described(root)})


def described(root: str) -> list[Description]:
    """Return the packages of a tree as they describe themselves, sorted and without repetitions. Blocks, as :func:`installed` does."""
    found = set(_debian(os.path.join(root, "var/lib/dpkg"), os.path.join(root, "usr/share/doc")))
    left = MAX_ENTRIES
    for folder, folders, files in os.walk(root):
        left -= len(folders) + len(files)
        if left < 0 or len(found) >= MAX_PACKAGES:
            break
        if folder == root:
            folders[:] = [name for name in folders if name not in _SKIPPED]
        for name in folders:
            if name.endswith((".dist-info", ".egg-info")):
                found.update(_python(os.path.join(folder, name, "METADATA" if name.endswith(".dist-info") else "PKG-INFO")))
        if "package.json" in files and _is_npm_package(folder):
            found.update(_npm(os.path.join(folder, "package.json")))
    return sorted({each[:3]: each for each in sorted(found)}.values())[:MAX_PACKAGES]


def _debian(folder: str, docs: str) -> Iterator[Description]:
    files = [os.path.join(folder, "status")]
    parts = os.path.join(folder, "status.d")  # images without a package manager have one file for each package
    if os.path.isdir(parts) and not os.path.islink(parts):
        files += [os.path.join(parts, name) for name in sorted(os.listdir(parts))]
    for path in files:
        for paragraph in _read(path).split("\n\n"):
            fields = _fields(paragraph)
            if fields.get("Package") and fields.get("Version") and fields.get("Status", "install ok installed").endswith(" installed"):
                name, version = fields["Package"], fields["Version"]
                source, _, of_source = fields.get("Source", name).partition(" ")
                yield Description("deb", name, version, source, of_source.strip("()") or version, _debian_licences(docs, name))


def _debian_licences(docs: str, package: str) -> tuple[str, ...]:
    """Return the licences in the copyright file of a package, if it has the machine-readable form (DEP 5)."""
    folder = os.path.join(docs, os.path.basename(package))
    with contextlib.suppress(OSError):
        folder = os.path.join(docs, os.path.basename(os.readlink(folder)))  # a package can share the folder of another one
    text = "" if os.path.islink(folder) else _read(os.path.join(folder, "copyright"))
    if not text.startswith("Format:"):
        return ()
    names = {line[len("License:") :].strip() for line in text.split("\n") if line.startswith("License:")}
    return _licences(*names)


def _licences(*names: object) -> tuple[str, ...]:
    """Return names of licences, sorted. Left out are other values, and texts of licences in place of names."""
    return tuple(sorted({name for name in names if isinstance(name, str) and 0 < len(name) < MAX_CHARS and "\n" not in name})[:MAX_LICENCES])


def _python(path: str) -> Iterator[Description]:
    fields = _fields(_read(path).partition("\n\n")[0])
    if fields.get("Name") and fields.get("Version"):
        licences = _licences(fields.get("License-Expression") or fields.get("License"))
        yield Description("pypi", fields["Name"].lower().replace("_", "-"), fields["Version"], licences=licences)


def _is_npm_package(folder: str) -> bool:
    parent, name = os.path.split(folder)
    scope = os.path.basename(parent)
    return scope == "node_modules" or (scope.startswith("@") and os.path.basename(os.path.dirname(parent)) == "node_modules" and bool(name))


def _npm(path: str) -> Iterator[Description]:
    try:
        document = json.loads(_read(path))
    except (ValueError, RecursionError):
        return
    if isinstance(document, dict) and isinstance(name := document.get("name"), str) and isinstance(version := document.get("version"), str):
        yield Description("npm", name, version, licences=_licences(document.get("license")))


def _fields(paragraph: str) -> dict[str, str]:
    """Return the fields of a paragraph in the form of RFC 822. Continued lines are left out."""
    found: dict[str, str] = {}
    for line in paragraph.split("\n"):
        name, colon, value = line.partition(":")
        if colon and not line[:1].isspace():
            found.setdefault(name, value.strip()[:MAX_CHARS])
    return found


def _read(path: str) -> str:
    """Return the text of a regular file; the empty text if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            return ""
        return file.read(MAX_FILE_BYTES).decode("utf-8", "replace")


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as result:
        json.dump(described("/"), result)
