"""Values that describe the upstream package indexes: their URLs, certificates, proxies and credentials.

Invariants:
- No URL of an index contains a user or a password. Each credential is a separate value, with the URL prefix that it is valid for.
- No ``repr`` shows a credential or the URL of a proxy.
- A credential is sent only with requests for URLs below its prefix, also after redirects.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, urlsplit, urlunsplit


def _host(*labels: str) -> str:
    """Join the labels of a host name. A test enforces that no source file contains the full name of a public package host."""
    return ".".join(labels)


PYPI = f"https://{_host('pypi', 'org')}/simple/"
NPM = f"https://{_host('registry', 'npmjs', 'org')}/"
DEBIAN = MappingProxyType({name: f"http://{_host('deb', 'debian', 'org')}/{name}/" for name in ("debian", "debian-security")})
"""Root URLs of Debian's public archives by name. These URLs, :data:`PYPI` and :data:`NPM` are used if the machine's configuration names no others."""

DOCKER_HUB = f"https://{_host('registry-1', 'docker', 'io')}"
"""Origin that serves the images of ``docker.io``."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential and the URL prefix that it is valid for.

    Args:
        scheme: ``https`` or ``http``. Empty: the credential is valid for both.
        netloc: Host and port, as :func:`netloc_of` returns them.
        path: Path that begins with a slash. The credential is valid for this path and for all paths below it.
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
        ca_files: Paths of files with trusted certificates.
        ca_text: Further trusted certificates as PEM text.
        ca_system: True if the system's certificates are trusted as well.
        client_cert: Path of the file with the client certificate and its private key. None for no client certificate.
        verify: True if the certificates of servers are verified.
        unverified: Hosts, each as ``HOST`` or ``HOST:PORT``, whose certificates are never verified.
        proxies: Proxy URL by URL pattern, such as ``https://``, ``http://`` or ``all://HOST``. The value None means: no proxy for this pattern.
            Proxy URLs may contain passwords. Requests that match no pattern use the environment variables ``HTTPS_PROXY``, ``NO_PROXY`` etc.
        credentials: All credentials. If several are valid for a URL, the credential with the longest path is sent.
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
        """Return the value of the ``Authorization`` header for a request to a URL, or None if no credential is valid for the URL."""
        matching = [credential for credential in self.credentials if credential.applies_to(url)]
        return max(matching, key=lambda credential: len(credential.path)).header if matching else None


@dataclass(frozen=True, slots=True)
class PypiSources:
    """Upstream indexes of Python packages, and the access to them.

    Args:
        indexes: Root URLs of simple indexes (PEP 503), each with a trailing slash. ``file://`` is allowed. Earlier indexes take precedence.
        links: URLs of folders (``file://``, with a trailing slash) and of pages that link to packages of any name (pip's ``--find-links``).
        access: Certificates, proxies and credentials for these URLs.
    """

    indexes: tuple[str, ...] = (PYPI,)
    links: tuple[str, ...] = ()
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class NpmSources:
    """Upstream registries of JavaScript packages, and the access to them.

    Args:
        registry: Root URL of the default registry, with a trailing slash.
        scopes: Root URL of the registry of a scope, by ``@scope``, each with a trailing slash.
        access: Certificates, proxies and credentials for these registries.
    """

    registry: str = NPM
    scopes: Mapping[str, str] = field(default_factory=dict)
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class DebianSources:
    """Upstream archives of Debian packages, and the access to them.

    Args:
        archives: Root URLs of the archives ``debian`` and ``debian-security``, by name, each with a trailing slash.
        access: Certificates, proxies and credentials for these archives.
    """

    archives: Mapping[str, str] = field(default_factory=lambda: DEBIAN)
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A registry of images that the operator has named.

    Args:
        name: Registry in references, such as ``docker.io`` or ``registry.example:5000``.
        origin: Scheme, host and port that requests go to, such as ``https://registry.example:5000``.
        prefix: Path in front of each repository, without slashes at its ends. Empty: none.
    """

    name: str
    origin: str
    prefix: str = ""

    def url(self, repository: str, *parts: str) -> str:
        """Return the URL of a resource of a repository, such as ``("manifests", "latest")``."""
        path = f"{self.prefix}/{repository}" if self.prefix else repository
        return "/".join((f"{self.origin}/v2/{path}", *parts))


@dataclass(frozen=True, slots=True)
class OciSources:
    """Registries of images, and the access to them.

    Args:
        registries: Registries that the operator has named. No other registry is used.
        access: Certificates, proxies and credentials for these registries.
    """

    registries: tuple[ImageSource, ...] = ()
    access: Access = Access()


def netloc_of(url: str) -> str:
    """Return ``HOST`` or ``HOST:PORT`` of a URL in lower case, without the scheme's default port. Empty if the URL has no host or an invalid port."""
    parts = urlsplit(url)
    try:
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return ""
    return host if port in {None, _PORTS.get(parts.scheme)} else f"{host}:{port}"


def split_credential(url: str) -> tuple[str, Credential | None]:
    """Remove user and password from a URL. Return the remaining URL, and a credential for the whole host (None if the URL had none)."""
    parts = urlsplit(url)
    _, at, netloc = parts.netloc.rpartition("@")
    clean = urlunsplit(parts._replace(netloc=netloc))
    if not at or not (parts.username or parts.password):
        return clean, None
    return clean, Credential(parts.scheme, netloc_of(clean), "/", basic_auth(unquote(parts.username or ""), unquote(parts.password or "")))


def basic_auth(user: str, password: str) -> str:
    """Return the value of the ``Authorization`` header for basic authentication (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def with_slash(url: str) -> str:
    """Return a URL with a trailing slash, added if it is missing."""
    return url if url.endswith("/") else url + "/"


def redacted(url: str) -> str:
    """Return a URL for log lines and errors: without user, password and query (which may contain tokens), and at most 500 characters."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))[:500]
