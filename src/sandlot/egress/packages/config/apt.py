"""Parsers for this machine's apt configuration: sources, proxies, certificates and credentials (apt_auth.conf(5)). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from sandlot.egress.packages.config.values import DEBIAN, Access, Credential, DebianSources, basic_auth, netloc_of, split_credential, with_slash
from sandlot.host.apt_sources import choose, parse_targets

_ANY_SUITE = "stable"
"""Suite whose mirror is searched for first. The mirror of any suite is suitable, because each request of a sandbox names its own suite."""
_SETTING = re.compile(r'^(Acquire::[^ ]+) "(.*)";$', re.MULTILINE)
_SCHEMES = ("http", "https", "file", "copy")
_FALSE = frozenset({"0", "false", "no", "off", "without", "disable"})


def parse_sources(targets: str, dump: str, logins: Iterable[tuple[str, str, str]], *, architecture: str) -> DebianSources:
    """Return the upstream archives of Debian packages that this machine's apt is configured to use.

    Args:
        targets: Output of ``apt-get indextargets``.
        dump: Output of ``apt-config dump``.
        logins: Entries of apt_auth.conf(5), each as machine, user and password.
        architecture: Debian's name of this machine's architecture, such as ``amd64``.
    """
    known = parse_targets(targets)
    credentials: list[Credential] = []
    archives = dict(DEBIAN)
    # Before the first `apt-get update`, apt does not know which source provides the suite "stable". The suites in the sources are then tried.
    suites = (_ANY_SUITE, *dict.fromkeys(target.release for target in known if "-" not in target.release))
    for target, suite in next((found for suite in suites if (found := choose(known, suite, architecture))), ()):
        name = {"": "debian", "security": "debian-security"}.get(suite.partition("-")[2])
        if name and urlsplit(target.uri).scheme in _SCHEMES:
            uri = "file:" + target.uri.removeprefix("copy:") if target.uri.startswith("copy:") else target.uri
            archives[name], credential = split_credential(with_slash(uri))
            credentials += [credential] if credential else []
    return DebianSources(archives=archives, access=_access(dump, [*_credentials(logins), *credentials]))


def _access(dump: str, credentials: list[Credential]) -> Access:
    settings = {name.lower(): value for name, value in _SETTING.findall(dump)}
    proxies: dict[str, str | None] = {}
    for scheme in ("http", "https"):
        prefix = f"acquire::{scheme}::proxy"
        for name, value in settings.items():
            if name == prefix and value:
                proxies[f"{scheme}://"] = None if value.upper() == "DIRECT" else value
            elif name.startswith(f"{prefix}::") and value:
                proxies[f"{scheme}://{name.removeprefix(prefix + '::')}"] = None if value.upper() == "DIRECT" else value
    if "http://" in proxies:
        proxies.setdefault("https://", proxies["http://"])  # apt-transport-https(1)
    ca_file = settings.get("acquire::https::cainfo")
    return Access(
        ca_files=(ca_file,) if ca_file else (),
        ca_system=not ca_file,
        client_cert=settings.get("acquire::https::sslcert") or None,
        verify=settings.get("acquire::https::verify-peer", "true").lower() not in _FALSE,
        proxies=proxies,
        credentials=tuple(credentials),
    )


def _credentials(logins: Iterable[tuple[str, str, str]]) -> list[Credential]:
    """Return a credential for each entry of apt_auth.conf(5). An entry without a scheme is valid for https only."""
    found = []
    for machine, user, password in logins:
        url = machine if "://" in machine else f"https://{machine}"
        parts = urlsplit(url)
        if netloc_of(url):
            found.append(Credential(parts.scheme, netloc_of(url), parts.path or "/", basic_auth(user, password)))
    return found
