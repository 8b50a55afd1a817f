"""Parsers for this machine's pip configuration: configuration files and ``PIP_*`` variables. Pure.

The options are documented in pip's user guide, "Configuration", and in ``pip install --help``. Variables override files, the user's files
override the system's files, and the section ``[install]`` overrides ``[global]``.
"""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from sandlot.egress.packages.config.values import PYPI, Access, Credential, PypiSources, basic_auth, netloc_of, split_credential, with_slash

Logins = Mapping[str, tuple[str, str]]
"""User and password by host name, from netrc(5)."""
_SECTIONS = ("global", "install")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_PROXY_PATTERNS = ("http://", "https://")


def config_files(env: Mapping[str, str], prefix: str) -> list[Path]:
    """Return the configuration files that pip reads. Later files take precedence.

    Args:
        env: Environment variables.
        prefix: Prefix of the Python installation (``sys.prefix``).
    """
    chosen = env.get("PIP_CONFIG_FILE")
    if chosen == "/dev/null":
        return []
    home = Path(env.get("HOME") or "/nonexistent")
    system = [Path(folder) / "pip/pip.conf" for folder in reversed((env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")) if folder]
    user = [home / ".pip/pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    return [*system, Path("/etc/pip.conf"), *user, Path(prefix) / "pip.conf", *([Path(chosen)] if chosen else [])]


def parse_options(texts: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the configured pip options by long name without dashes in front, such as ``index-url``.

    Args:
        texts: Contents of configuration files. Later files take precedence. Malformed files are ignored.
        env: Environment variables. ``PIP_*`` override the files; all others are ignored.
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
                found[section].update({_long_name(name): value for name, value in parser.items(section)})
    variables = {_long_name(name.removeprefix("PIP_")): value for name, value in env.items() if name.startswith("PIP_") and value}
    return {name: value for layer in (*found.values(), variables) for name, value in layer.items()}


def parse_sources(options: Mapping[str, str], env: Mapping[str, str], logins: Logins = MappingProxyType({})) -> PypiSources:
    """Return the upstream indexes of Python packages that pip options name, with their certificates, proxies and credentials.

    Args:
        options: pip options by long name, as :func:`parse_options` returns them.
        env: Environment variables, for the home directory and for certificates (``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``).
        logins: User and password by host name, from the user's netrc(5).
    """
    has_no_index = options.get("no-index", "").strip().lower() in _TRUE
    index_urls = [] if has_no_index else [options.get("index-url", "").strip() or PYPI, *options.get("extra-index-url", "").split()]
    indexes: list[str] = []
    links: list[str] = []
    credentials: list[Credential] = []
    for urls, target in ((index_urls, indexes), (options.get("find-links", "").split(), links)):
        for url in urls:
            clean, credential = split_credential(_as_url(url, env))
            target.append(clean if target is links and not clean.startswith("file:") else with_slash(clean))
            credentials += [credential] if credential else []
    ca_file = options.get("cert") or env.get("REQUESTS_CA_BUNDLE") or env.get("CURL_CA_BUNDLE")
    proxy = options.get("proxy")
    access = Access(
        ca_files=(ca_file,) if ca_file else (),
        ca_system=not ca_file,
        client_cert=options.get("client-cert") or None,
        unverified=frozenset(host for host in (netloc_of(f"https://{name}") for name in options.get("trusted-host", "").split()) if host),
        proxies=dict.fromkeys(_PROXY_PATTERNS, proxy if "://" in proxy else f"http://{proxy}") if proxy else {},
        credentials=(*credentials, *_netrc_credentials(logins, [*indexes, *links], credentials)),
    )
    return PypiSources(indexes=tuple(dict.fromkeys(indexes)), links=tuple(dict.fromkeys(links)), access=access)


def _netrc_credentials(logins: Logins, urls: Sequence[str], known: Sequence[Credential]) -> list[Credential]:
    """Return the netrc(5) credentials of configured hosts whose URLs contain no credential."""
    hosts = {netloc_of(url): urlsplit(url) for url in urls}
    has_credential = {credential.netloc for credential in known}
    return [
        Credential(parts.scheme, netloc, "/", basic_auth(*login))
        for netloc, parts in hosts.items()
        if (login := logins.get(parts.hostname or "")) is not None and netloc not in has_credential
    ]


def _long_name(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _as_url(text: str, env: Mapping[str, str]) -> str:
    """Return a configured location as a URL. A location that is not a URL is the path of a folder on this machine."""
    if "://" in text or text.startswith("file:"):
        return text
    path = Path(env.get("HOME") or "/nonexistent", text[2:]) if text.startswith("~/") else Path(text)
    return with_slash(path.absolute().as_uri())
