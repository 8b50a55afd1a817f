"""Upstream package indexes and the access to them, as values.

Invariants:
- No URL here contains a user or a password. Credentials are separate values, each with the URL prefix that it is valid for, and no ``repr`` shows
  them.
- A credential is sent only with requests for URLs below its prefix, also after redirects.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, urlsplit, urlunsplit


def _host(*labels: str) -> str:
    """Join the labels of a public registry's name. A test keeps the names of package hosts out of all files."""
    return ".".join(labels)


PYPI = f"https://{_host('pypi', 'org')}/simple/"
NPM = f"https://{_host('registry', 'npmjs', 'org')}/"
DEBIAN = MappingProxyType({name: f"http://{_host('deb', 'debian', 'org')}/{name}/" for name in ("debian", "debian-security")})
"""The public registries, used if the machine configures no others."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential for all URLs with one prefix.

    Args:
        scheme: ``https`` or ``http``; empty for both.
        netloc: Host and port, as :func:`netloc_of` returns them.
        path: Path for which the credential is valid, with everything below it; begins with a slash.
        header: Value of the ``Authorization`` header.
    """

    scheme: str
    netloc: str
    path: str
    header: str = field(repr=False)

    def applies_to(self, url: str) -> bool:
        """Return whether the credential may be sent with a request for a URL."""
        parts = urlsplit(url)
        folder = self.path.rstrip("/") + "/"
        return self.scheme in {"", parts.scheme} and self.netloc == netloc_of(url) and f"{parts.path or '/'}/".startswith(folder)


@dataclass(frozen=True, slots=True)
class Access:
    """Certificates, proxies and credentials for the upstream indexes of one registry.

    Args:
        ca_files: Files with trusted certificates.
        ca_text: Further trusted certificates, PEM.
        ca_system: True if the system's certificates are trusted as well.
        client_cert: File with the client certificate and its key.
        verify: True if certificates are verified.
        unverified: Hosts (:func:`netloc_of`) whose certificates are not verified.
        proxies: Proxy URL, or None for no proxy, by the pattern ``https://``, ``http://`` or ``all://HOST``. A URL may contain a password.
            Requests that match no pattern use the usual variables (``HTTPS_PROXY``, ``NO_PROXY``).
        credentials: Credentials; the one with the longest matching path is sent.
    """

    ca_files: tuple[str, ...] = ()
    ca_text: str = ""
    ca_system: bool = True
    client_cert: str | None = None
    verify: bool = True
    unverified: frozenset[str] = frozenset()
    proxies: Mapping[str, str | None] = field(default_factory=dict, repr=False)
    credentials: tuple[Credential, ...] = field(default=(), repr=False)

    def authorization(self, url: str) -> str | None:
        """Return the ``Authorization`` header for a URL, or None if no credential applies."""
        matching = [credential for credential in self.credentials if credential.applies_to(url)]
        return max(matching, key=lambda credential: len(credential.path)).header if matching else None


@dataclass(frozen=True, slots=True)
class PypiSources:
    """Upstream indexes of Python packages.

    Args:
        indexes: Roots of simple indexes (PEP 503), with a trailing slash; also ``file://``. Earlier indexes take precedence.
        links: Folders (``file://``, with a trailing slash) and pages with links to packages of any name.
        access: Certificates, proxies and credentials for them.
    """

    indexes: tuple[str, ...] = (PYPI,)
    links: tuple[str, ...] = ()
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class NpmSources:
    """Upstream registries of JavaScript packages.

    Args:
        registry: Root of the registry, with a trailing slash.
        scopes: Root of another registry by ``@scope``.
        access: Certificates, proxies and credentials for them.
    """

    registry: str = NPM
    scopes: Mapping[str, str] = field(default_factory=dict)
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class DebianSources:
    """Upstream archives of Debian packages.

    Args:
        archives: Roots of ``debian`` and ``debian-security``, with a trailing slash.
        access: Certificates, proxies and credentials for them.
    """

    archives: Mapping[str, str] = field(default_factory=lambda: DEBIAN)
    access: Access = Access()


def netloc_of(url: str) -> str:
    """Return host and port of a URL in lower case, without the port if it is the default of the scheme. Empty if the URL has no host."""
    parts = urlsplit(url)
    try:
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return ""
    return host if port in {None, _PORTS.get(parts.scheme)} else f"{host}:{port}"


def split_credential(url: str) -> tuple[str, Credential | None]:
    """Split a URL into the URL without user and password, and the credential for its whole host."""
    parts = urlsplit(url)
    _, at, netloc = parts.netloc.rpartition("@")
    clean = urlunsplit(parts._replace(netloc=netloc))
    if not at or not (parts.username or parts.password):
        return clean, None
    return clean, Credential(parts.scheme, netloc_of(clean), "/", basic_auth(unquote(parts.username or ""), unquote(parts.password or "")))


def basic_auth(user: str, password: str) -> str:
    """Return the ``Authorization`` header of basic authentication (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def with_slash(url: str) -> str:
    """Return a URL with a trailing slash."""
    return url if url.endswith("/") else url + "/"


def redacted(url: str) -> str:
    """Return a URL for log lines and errors: without user, password and query, which may contain signatures and tokens."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))[:500]
