"""Sources for building images, taken from the machine's own apt configuration. Pure.

Invariants:
- The recipe of an image names the suite, for example ``bookworm``. The machine's configuration names the mirrors of the suite, the options that say
  how to reach the mirrors, and the keys that sign the suite.
- Only Debian's own ``main`` is used, so that every machine builds the same image. Archives of third parties that use the name of the suite are
  excluded, as are backports and proposed updates.
- A machine with another Debian release uses the same mirrors for the recipe's suite. If the machine has no Debian mirrors, there are no sources, and
  mmdebstrap uses its default mirrors.
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
"""Prefixes of the apt options that are copied from the machine. They say how archives are reached and trusted (apt.conf(5), THE ACQUIRE GROUP)."""


@dataclass(frozen=True, slots=True)
class Target:
    """A package index in the machine's apt configuration, parsed from one stanza of the output of ``apt-get indextargets``.

    Args:
        uri: URI of the repository.
        release: Suite, as in the configuration.
        codename: Code name in the release file; empty before the first ``apt-get update``.
        component: Component, for example ``main``.
        architecture: Architecture, for example ``amd64``.
        origin: Publisher in the release file; empty before the first ``apt-get update``.
        entry: Position in the configuration, as ``FILE:NUMBER``. NUMBER counts the stanzas of a .sources file, or the lines of a .list file, from 1.
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
    """An apt repository from which an image is built.

    Args:
        uri: URI of the repository.
        suite: Suite or pocket, for example ``bookworm-updates``.
        signed_by: Path of a keyring, or the text of a key. If empty, apt uses the machine's trusted keys.
    """

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
    """Return the package indexes from which to build an image, each with the suite or pocket to request. The suite's own index comes first.

    Args:
        targets: Indexes in the machine's configuration.
        suite: Code name, for example ``bookworm``. Its pockets are ``bookworm-updates`` and ``bookworm-security``.
        architecture: Debian's name of the architecture.

    Returns:
        Pairs of an index and the name of a suite or pocket. Empty if the configuration contains no Debian mirror for the architecture.
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
    """Return the ``Signed-By`` value of a source in the apt configuration: a path, the text of a key, or an empty string if there is none.

    Args:
        entry: Position of the source in the configuration, as in :attr:`Target.entry`.
        text: Text of the file that ``entry`` names.
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
    """Return the text of a .sources file with these repositories, in deb822 style (sources.list(5))."""
    return "\n".join(
        f"Types: deb\nURIs: {source.uri}\nSuites: {source.suite}\nComponents: {_COMPONENT}\n"
        + (f"Signed-By: {_folded(source.signed_by)}\n" if source.signed_by else "")
        for source in sources
    )


def options_text(dump: str) -> str:
    """Return the machine's apt options that say how to reach archives, as the text of a configuration file for another apt process.

    Args:
        dump: Output of ``apt-config dump``. Options with an empty value are omitted.
    """
    return "".join(f"{line}\n" for line in dump.splitlines() if line.startswith(_OPTIONS) and line.endswith('";') and not line.endswith(' "";'))


def credentials_text(paths: Mapping[str, str]) -> str:
    """Return the text of an apt configuration file that makes another apt process use the machine's credential files (apt_auth.conf(5)).

    Args:
        paths: ``netrc`` -> path of the machine's auth.conf, ``netrcparts`` -> path of its auth.conf.d. Must contain only paths that exist.
    """
    return "".join(f'Dir::Etc::{name} "{path}";\n' for name, path in sorted(paths.items()))


def stanzas(text: str) -> list[dict[str, str]]:
    """Parse a text in deb822(5) format: for each stanza, field -> value. Comments are omitted. Continued lines are joined with newlines."""
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
