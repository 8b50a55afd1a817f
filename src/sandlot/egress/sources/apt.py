"""Apt's configuration of this machine: sources, proxies, certificates, apt_auth.conf(5). Pure: texts in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from sandlot.egress.sources.values import DEBIAN, Access, Credential, Debian, basic, parted, place, rooted
from sandlot.host.apt_sources import choose, parse_targets

_SUITE = "stable"
"""Of the machine's mirrors that of any suite will do: the guest says which suite it wants."""
_LINE = re.compile(r'^(Acquire::[^ ]+) "(.*)";$', re.MULTILINE)
_SCHEMES = ("http", "https", "file", "copy")
_FALSE = frozenset({"0", "false", "no", "off", "without", "disable"})


def debian(targets: str, dump: str, logins: Iterable[tuple[str, str, str]], *, architecture: str) -> Debian:
    """Where Debian's packages come from.

    Args:
        targets: The output of ``apt-get indextargets``.
        dump: The output of ``apt-config dump``.
        logins: The machines of apt_auth.conf(5), each with user and password.
        architecture: Debian's word for this machine.
    """
    known = parse_targets(targets)
    credentials: list[Credential] = []
    archives = dict(DEBIAN)
    # Before the first `apt-get update` nothing says which source is Debian's, and only a suite's own name finds it.
    suites = (_SUITE, *dict.fromkeys(target.release for target in known if "-" not in target.release))
    for target, suite in next((found for suite in suites if (found := choose(known, suite, architecture))), ()):
        name = {"": "debian", "security": "debian-security"}.get(suite.partition("-")[2])
        if name and urlsplit(target.uri).scheme in _SCHEMES:
            uri = "file:" + target.uri.removeprefix("copy:") if target.uri.startswith("copy:") else target.uri
            archives[name], credential = parted(rooted(uri))
            credentials += [credential] if credential else []
    return Debian(archives=archives, architecture=architecture, access=_access(dump, [*_of_auth(logins), *credentials]))


def _access(dump: str, credentials: list[Credential]) -> Access:
    set_ = {name.lower(): value for name, value in _LINE.findall(dump)}
    proxies: dict[str, str | None] = {}
    for scheme in ("http", "https"):
        prefix = f"acquire::{scheme}::proxy"
        for name, value in set_.items():
            if name == prefix and value:
                proxies[f"{scheme}://"] = None if value.upper() == "DIRECT" else value
            elif name.startswith(f"{prefix}::") and value:
                proxies[f"{scheme}://{name.removeprefix(prefix + '::')}"] = None if value.upper() == "DIRECT" else value
    if "http://" in proxies:
        proxies.setdefault("https://", proxies["http://"])  # apt-transport-https(1)
    ca_file = set_.get("acquire::https::cainfo")
    return Access(
        ca_files=(ca_file,) if ca_file else (),
        ca_system=not ca_file,
        client_cert=set_.get("acquire::https::sslcert") or None,
        verify=set_.get("acquire::https::verify-peer", "true").lower() not in _FALSE,
        proxies=proxies,
        credentials=tuple(credentials),
    )


def _of_auth(logins: Iterable[tuple[str, str, str]]) -> list[Credential]:
    """apt_auth.conf(5): a machine without a scheme is meant for https alone."""
    found = []
    for machine, user, password in logins:
        url = machine if "://" in machine else f"https://{machine}"
        parts = urlsplit(url)
        if place(url):
            found.append(Credential(parts.scheme, place(url), parts.path or "/", basic(user, password)))
    return found
