"""Where packages come from and how that is reached. Values only.

Laws:
- No URL here holds a user or a password: credentials are apart, each with the place that it belongs to, and are shown by no ``repr``.
- A credential goes to URLs below its place and nowhere else, whoever redirects there.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote, urlsplit, urlunsplit


def _host(*labels: str) -> str:
    """A public registry's name, in labels: a test keeps the names of package hosts out of every file."""
    return ".".join(labels)


PYPI = f"https://{_host('pypi', 'org')}/simple/"
NPM = f"https://{_host('registry', 'npmjs', 'org')}/"
DEBIAN = MappingProxyType({name: f"http://{_host('deb', 'debian', 'org')}/{name}/" for name in ("debian", "debian-security")})
"""The public registries, where the machine says nothing else."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Credential:
    """What one place wants to be shown.

    Args:
        scheme: ``https`` or ``http``; empty for both.
        netloc: Host and port, as :func:`place` gives it.
        path: Where it is good for: this path and what lies below; begins with a slash.
        header: The value of ``Authorization``.
    """

    scheme: str
    netloc: str
    path: str
    header: str = field(repr=False)

    def fits(self, url: str) -> bool:
        """Whether it may be sent with a request for that URL."""
        parts = urlsplit(url)
        folder = self.path.rstrip("/") + "/"
        return self.scheme in {"", parts.scheme} and self.netloc == place(url) and f"{parts.path or '/'}/".startswith(folder)


@dataclass(frozen=True, slots=True)
class Access:
    """How the upstreams of one registry are reached.

    Args:
        ca_files: Files with certificates that vouch for them.
        ca_text: Such certificates themselves, PEM.
        ca_system: Whether the system's certificates do as well.
        client_cert: A file with our own certificate and its key.
        verify: Whether certificates are checked.
        unverified: Places (:func:`place`) whose certificates are not.
        proxies: What is reached through which proxy: ``https://``, ``http://`` or ``all://HOST`` -> the proxy's URL, None for no proxy. It may
            hold a password. What is not named goes by the usual variables (``HTTPS_PROXY``, ``NO_PROXY``).
        credentials: Who is shown what; the longest path that fits wins.
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
        """The header for a URL; None where nothing is to be shown."""
        fitting = [credential for credential in self.credentials if credential.fits(url)]
        return max(fitting, key=lambda credential: len(credential.path)).header if fitting else None


@dataclass(frozen=True, slots=True)
class Pypi:
    """Python's packages.

    Args:
        indexes: Roots of simple indexes (PEP 503), with a slash at the end; ``file://`` as well. The first one's word goes over the next one's.
        links: Folders (``file://``, with a slash at the end) and pages with links to packages of any name.
        access: How they are reached.
    """

    indexes: tuple[str, ...] = (PYPI,)
    links: tuple[str, ...] = ()
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class Npm:
    """JavaScript's packages.

    Args:
        registry: The registry's root, with a slash at the end.
        scopes: ``@scope`` -> the root of another one for its packages.
        access: How they are reached.
    """

    registry: str = NPM
    scopes: Mapping[str, str] = field(default_factory=dict)
    access: Access = Access()


@dataclass(frozen=True, slots=True)
class Debian:
    """Debian's packages.

    Args:
        archives: ``debian`` and ``debian-security`` -> their roots, with a slash at the end.
        architecture: Debian's word for this machine, for example ``amd64``.
        access: How they are reached.
    """

    archives: Mapping[str, str] = field(default_factory=lambda: DEBIAN)
    architecture: str = "amd64"
    access: Access = Access()


def place(url: str) -> str:
    """Host and port of a URL, in one spelling; the port is left out where it is the scheme's own. Empty where it has none."""
    parts = urlsplit(url)
    try:
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return ""
    return host if port in {None, _PORTS.get(parts.scheme)} else f"{host}:{port}"


def parted(url: str) -> tuple[str, Credential | None]:
    """A URL without its user and password, and these as the credential for its whole host."""
    parts = urlsplit(url)
    _, at, netloc = parts.netloc.rpartition("@")
    clean = urlunsplit(parts._replace(netloc=netloc))
    if not at or not (parts.username or parts.password):
        return clean, None
    return clean, Credential(parts.scheme, place(clean), "/", basic(unquote(parts.username or ""), unquote(parts.password or "")))


def basic(user: str, password: str) -> str:
    """The header of basic authentication, RFC 7617."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def rooted(url: str) -> str:
    """A URL that ends with a slash."""
    return url if url.endswith("/") else url + "/"


def shown(url: str) -> str:
    """A URL as a log may have it: no user, no password, no query, where signatures and tokens hide."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))[:500]
