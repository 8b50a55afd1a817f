"""The machine's own apt configuration, as sources for building images. Pure.

Invariants:
- A recipe names the suite. The machine's configuration names the mirrors of the suite, how to reach them, and the keys that sign it.
- Only Debian's own ``main`` is used, so that every machine builds the same image. Archives of third parties that use the name of the suite are
  excluded, as are backports and proposed updates.
- A machine with another Debian release uses the same mirrors for the recipe's suite. Without Debian mirrors there are no sources, and mmdebstrap uses
  its own default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_POCKETS = ("", "-updates", "-security")
_COMPONENT = "main"
_ORIGIN = "Debian"

_OPTIONS = (
    "Acquire::http",
    "Acquire::https",
    "Acquire::ftp",
    "Acquire::tor",
    "Acquire::Check-",
    "Acquire::Min-ValidTime",
    "Acquire::Max-ValidTime",
    "Acquire::Retries",
    "Acquire::ForceIPv",
    "Acquire::Allow",
)
"""Options for reaching and trusting archives: apt.conf(5), THE ACQUIRE GROUP. Other options concern only the machine itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """A package index in the machine's apt configuration: a stanza of ``apt-get indextargets``.

    Args:
        uri: URI of the repository.
        release: Suite, as in the configuration.
        codename: Code name in the release file; empty before the first ``apt-get update``.
        component: Component, for example ``main``.
        architecture: Architecture, for example ``amd64``.
        origin: Publisher in the release file; empty before the first ``apt-get update``.
        entry: Position in the configuration as ``FILE:NUMBER``: the stanza of a .sources file or the line of a .list file.
    """

    uri: str
    release: str
    codename: str
    component: str
    architecture: str
    origin: str
    entry: str


@dataclass(frozen=True, slots=True)
class Source:
    """A repository to build from. ``signed_by`` is the path of a keyring or a whole key. Empty: the machine's trusted keys."""

    uri: str
    suite: str
    signed_by: str = ""


def parse_targets(text: str) -> tuple[Target, ...]:
    """Return the binary package indexes in the output of ``apt-get indextargets``."""
    return tuple(
        Target(
            uri=stanza.get("Repo-URI", ""),
            release=stanza.get("Release", ""),
            codename=stanza.get("Codename", ""),
            component=stanza.get("Component", ""),
            architecture=stanza.get("Architecture", ""),
            origin=stanza.get("Origin", ""),
            entry=stanza.get("Sourcesentry", ""),
        )
        for stanza in stanzas(text)
        if stanza.get("Created-By") == "Packages" and stanza.get("Target-Of") == "deb"
    )


def choose(targets: Iterable[Target], suite: str, architecture: str) -> tuple[tuple[Target, str], ...]:
    """Return the indexes from which a suite is built, each with its suite or pocket. The suite itself comes first.

    Args:
        targets: Indexes in the machine's configuration.
        suite: Code name, for example ``bookworm``.
        architecture: Debian's name of the architecture.

    Returns:
        An empty tuple if the configuration contains no Debian mirror.
    """
    usable = [
        target for target in targets if target.component == _COMPONENT and target.architecture == architecture and target.origin in {_ORIGIN, ""}
    ]
    exact: dict[str, tuple[Target, str]] = {}
    other: dict[str, tuple[Target, str]] = {}
    for target in usable:
        for pocket in _POCKETS:
            if suite + pocket in {target.codename, target.release}:
                exact.setdefault(pocket, (target, suite + pocket))
            elif target.origin and _pocket_of(target.codename) == pocket:
                other.setdefault(pocket, (target, suite + pocket))
    chosen = exact if "" in exact else other
    return tuple(chosen[pocket] for pocket in _POCKETS if pocket in chosen) if "" in chosen else ()


def signed_by(entry: str, text: str) -> str:
    """Return the ``Signed-By`` of a source: a path, a key, or an empty text.

    Args:
        entry: Position of the source, as ``FILE:NUMBER``.
        text: Text of the file.
    """
    path, _, number = entry.rpartition(":")
    index = int(number) if number.isdigit() else 0
    if path.endswith(".sources"):
        found = stanzas(text)
        return found[index - 1].get("Signed-By", "").strip() if 0 < index <= len(found) else ""
    lines = text.splitlines()
    option = re.search(r"\[[^\]]*\bsigned-by=([^\s\]]+)", lines[index - 1]) if 0 < index <= len(lines) else None
    return option.group(1) if option else ""


def sources_text(sources: Iterable[Source]) -> str:
    """Return the sources in deb822 style, sources.list(5)."""
    return "\n".join(
        f"Types: deb\nURIs: {source.uri}\nSuites: {source.suite}\nComponents: {_COMPONENT}\n"
        + (f"Signed-By: {_folded(source.signed_by)}\n" if source.signed_by else "")
        for source in sources
    )


def options_text(dump: str) -> str:
    """Return the options of ``apt-config dump`` for reaching archives, as configuration for another apt."""
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(_OPTIONS) and line.endswith('";') and not line.endswith(' "";'))


def credentials_text(paths: Mapping[str, str]) -> str:
    """Return configuration that makes another apt read the machine's apt_auth.conf(5) in place.

    Args:
        paths: ``netrc`` and ``netrcparts`` -> file and folder of the machine, if they exist.
    """
    return "".join(f'Dir::Etc::{name} "{path}";\n' for name, path in sorted(paths.items()))


def stanzas(text: str) -> list[dict[str, str]]:
    """Parse the stanzas of a deb822 text, deb822(5). Comments are omitted. Continued lines are joined with newlines."""
    found: list[dict[str, str]] = []
    current: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if current:
                found.append(current)
            current, name = {}, ""
        elif line[0] in " \t" and name:
            current[name] += "\n" + line.strip()
        else:
            name, _, value = line.partition(":")
            current[name] = value.strip()
    return found


def _pocket_of(codename: str) -> str | None:
    for pocket in _POCKETS[1:]:
        if codename.endswith(pocket):
            return pocket
    return "" if re.fullmatch(r"[a-z]+", codename) else None


def _folded(value: str) -> str:
    return "\n".join(line if number == 0 else f" {line}" for number, line in enumerate(value.splitlines()))
