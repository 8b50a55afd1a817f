"""Pip's configuration of this machine: configuration files and ``PIP_*`` variables. Pure: texts in, values out.

What each option means: pip's user guide, "Configuration", and ``pip install --help``. A variable goes over a file, a file that is nearer to
the user over one that is farther, ``[install]`` over ``[global]``.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from sandlot.egress.sources.values import PYPI, Access, Credential, Pypi, basic, parted, place, rooted

Logins = Mapping[str, tuple[str, str]]
_SECTIONS = ("global", "install")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_PROXIED = ("http://", "https://")


def files(env: Mapping[str, str], prefix: str) -> list[Path]:
    """The configuration files that pip reads, farthest first.

    Args:
        env: The environment.
        prefix: Of the Python installation (``sys.prefix``).
    """
    chosen = env.get("PIP_CONFIG_FILE")
    if chosen == "/dev/null":
        return []
    home = Path(env.get("HOME") or "/nonexistent")
    system = [Path(folder) / "pip/pip.conf" for folder in reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")) if folder]
    user = [home / ".pip/pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    return [*system, Path("/etc/pip.conf"), *user, Path(prefix) / "pip.conf", *([Path(chosen)] if chosen else [])]


def options(texts: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """What is set, by the long name of the option.

    Args:
        texts: Configuration files, farthest first. One that is no such file is left out.
        env: The environment.
    """
    found: dict[str, dict[str, str]] = {section: {} for section in _SECTIONS}
    for text in texts:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(text)
        except configparser.Error:
            continue
        for section in _SECTIONS:
            if parser.has_section(section):
                found[section].update({_long(name): value for name, value in parser.items(section)})
    variables = {_long(name.removeprefix("PIP_")): value for name, value in env.items() if name.startswith("PIP_") and value}
    return {name: value for layer in (*found.values(), variables) for name, value in layer.items()}


def pypi(set_: Mapping[str, str], env: Mapping[str, str], logins: Logins = MappingProxyType({})) -> Pypi:
    """Where Python's packages come from.

    Args:
        set_: Pip's options.
        env: The environment.
        logins: The user's netrc(5): host -> user and password.
    """
    alone = set_.get("no-index", "").strip().lower() in _TRUE
    named = [] if alone else [set_.get("index-url", "").strip() or PYPI, *set_.get("extra-index-url", "").split()]
    indexes: list[str] = []
    links: list[str] = []
    credentials: list[Credential] = []
    for urls, target in ((named, indexes), (set_.get("find-links", "").split(), links)):
        for url in urls:
            clean, credential = parted(_url(url, env))
            target.append(clean if target is links and not clean.startswith("file:") else rooted(clean))
            credentials += [credential] if credential else []
    ca_file = set_.get("cert") or env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE")
    proxy = set_.get("proxy")
    access = Access(
        ca_files=(ca_file,) if ca_file else (),
        ca_system=not ca_file,
        client_cert=set_.get("client-cert") or None,
        unverified=frozenset(host for host in (place(f"https://{name}") for name in set_.get("trusted-host", "").split()) if host),
        proxies=dict.fromkeys(_PROXIED, proxy if "://" in proxy else f"http://{proxy}") if proxy else {},
        credentials=(*credentials, *_of_netrc(logins, [*indexes, *links], credentials)),
    )
    return Pypi(indexes=tuple(dict.fromkeys(indexes)), links=tuple(dict.fromkeys(links)), access=access)


def _of_netrc(logins: Logins, urls: Sequence[str], known: Sequence[Credential]) -> list[Credential]:
    """Users and passwords of the configured hosts that have none in their URL."""
    places = {place(url): urlsplit(url) for url in urls}
    shown = {credential.netloc for credential in known}
    return [
        Credential(parts.scheme, where, "/", basic(*login))
        for where, parts in places.items()
        if (login := logins.get(parts.hostname or "")) is not None and where not in shown
    ]


def _long(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _url(text: str, env: Mapping[str, str]) -> str:
    """A place as a URL: a path means a folder here."""
    if "://" in text or text.startswith("file:"):
        return text
    path = Path(env.get("HOME") or "/nonexistent", text[2:]) if text.startswith("~/") else Path(text)
    return rooted(path.absolute().as_uri())
