"""The machine's own apt configuration: where Debian's packages come from here. Pure: texts in, texts out.

Laws:
- A recipe says which suite; the machine says where it comes from, how it is reached and which keys vouch for it.
- Only Debian's own ``main`` is taken, so that every machine builds the same image: a third party's archive that happens
  to carry the suite's name is not, nor are backports or proposed updates.
- A machine that runs another Debian release uses the same mirrors for the recipe's suite. A machine without any gives
  no sources, and mmdebstrap falls back to its own default.
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
"""How archives are reached and trusted: apt.conf(5), THE ACQUIRE GROUP. The rest of a machine's apt configuration is about the machine."""


@dataclass(frozen=True, slots=True)
class Target:
    """One package index that the machine's apt knows: a stanza of ``apt-get indextargets``.

    Args:
        uri: The repository.
        release: The suite as the source names it.
        codename: The release's own code name; empty before the first ``apt-get update``.
        component: For example ``main``.
        architecture: For example ``amd64``.
        origin: Who publishes it; empty before the first ``apt-get update``.
        entry: Where it is configured: ``FILE:NUMBER``, the stanza of a .sources file or the line of a .list file.
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
    """A repository to build from. ``signed_by`` is a keyring's path or a whole key; empty means the machine's trusted keys."""

    uri: str
    suite: str
    signed_by: str = ""


def parse_targets(text: str) -> tuple[Target, ...]:
    """The binary package indexes in the output of ``apt-get indextargets``."""
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
    """Which indexes to build a suite from, each with the suite to ask it for; the suite itself first.

    Args:
        targets: What the machine's apt knows.
        suite: A code name, for example ``bookworm``.
        architecture: Debian's word for the machine.

    Returns:
        Nothing where the machine's apt has no Debian mirror at all.
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
    """The ``Signed-By`` of a configured source: a path, a key, or nothing.

    Args:
        entry: ``FILE:NUMBER`` as apt gives it.
        text: The file's text.
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
    """The sources in deb822 style, sources.list(5)."""
    return "\n".join(
        f"Types: deb\nURIs: {source.uri}\nSuites: {source.suite}\nComponents: {_COMPONENT}\n"
        + (f"Signed-By: {_folded(source.signed_by)}\n" if source.signed_by else "")
        for source in sources
    )


def options_text(dump: str) -> str:
    """What of the output of ``apt-config dump`` says how archives are reached, as configuration for another apt."""
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(_OPTIONS) and line.endswith('";') and not line.endswith(' "";'))


def credentials_text(paths: Mapping[str, str]) -> str:
    """Configuration that lets another apt read the machine's apt_auth.conf(5) where it lies; nothing is copied.

    Args:
        paths: ``netrc`` and ``netrcparts`` -> the machine's file and folder, those that exist.
    """
    return "".join(f'Dir::Etc::{name} "{path}";\n' for name, path in sorted(paths.items()))


def stanzas(text: str) -> list[dict[str, str]]:
    """The stanzas of a deb822 text, deb822(5): comments left out, continued lines joined with newlines."""
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
