"""Addresses of previews: build and parse them. Pure.

A preview has two forms. The host form, ``http://PORT-SANDBOX.DOMAIN/``, gives each port of each sandbox its own origin, so that pages work as
they would on any server. The path form, ``http://DOMAIN/p/TOKEN/``, needs no name for each port; its pages share one origin, and the
browser therefore isolates them like embedded documents of a stranger (``server/preview/forwarding.py``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote

from sandlot.model.errors import ErrorCode, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import parse_preview_label, preview_label

TOKEN_PARAMETER: Final = "sandlot_token"  # noqa: S105 - not a secret
"""Query parameter of the token in a URL of the host form."""
TOKEN_HEADERS: Final = (b"x-sandlot-preview-token", b"e2b-traffic-access-token")
"""Headers with the token of a program. E2B's clients send the second one."""
PATH_PREFIX: Final = "/p/"

LOCALHOST: Final = "localhost"
"""Domain whose subdomains browsers and curl resolve to the loopback address without DNS (RFC 6761, 6.3)."""

_DOMAIN = re.compile(
    r"(?:(https?)://)?((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)(?::([1-9][0-9]{0,4}))?", re.IGNORECASE
)
_MAX_DOMAIN = 200
"""With the label of a port in front, a host name must have at most 253 characters."""
_MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class PreviewAddress:
    """Address under which browsers reach the previews.

    Args:
        scheme: ``http`` or ``https``.
        domain: Domain of which each preview has a subdomain, lower-case.
        port: Port in URLs. None: the default port of the scheme.
    """

    scheme: str
    domain: str
    port: int | None = None

    @property
    def authority(self) -> str:
        """Domain, with the port if it is not the default."""
        return self.domain if self.port is None else f"{self.domain}:{self.port}"

    def host(self, sandbox: SandboxId, port: int) -> str:
        """Return the host of a preview, with the port if it is not the default."""
        return f"{preview_label(sandbox, port)}.{self.authority}"

    def url(self, sandbox: SandboxId, port: int, token: str | None = None, target: str = "") -> str:
        """Return the URL of a preview in the host form.

        Args:
            sandbox: Id of the sandbox.
            port: Port inside the sandbox.
            token: Preview token, which the first request of a browser exchanges for a cookie. None: a URL without a token, for public ports.
            target: Path, query and fragment of the page. Default: ``/``.
        """
        resource, hash_, fragment = target.partition("#")
        path, question, query = resource.partition("?")
        if token is not None:
            query = f"{query}&{TOKEN_PARAMETER}={quote(token)}" if query else f"{TOKEN_PARAMETER}={quote(token)}"
            question = "?"
        return f"{self.scheme}://{self.host(sandbox, port)}{path or '/'}{question}{query}{hash_}{fragment}"

    def path_url(self, token: str) -> str:
        """Return the URL of a preview in the path form."""
        return f"{self.scheme}://{self.authority}{PATH_PREFIX}{quote(token)}/"

    def parse_host(self, host: str) -> tuple[SandboxId, int] | None:
        """Return the sandbox and the port that a Host header names; None if the host is not that of a preview in the host form.

        The port number of the header is ignored: a proxy in front may listen on another port than the service.
        """
        name, _, port = host.lower().partition(":")
        if port and not (port.isascii() and port.isdigit()):
            return None
        label, _, domain = name.partition(".")
        return parse_preview_label(label) if domain.removesuffix(".") == self.domain else None


class PreviewAddresses(Protocol):
    """Address of the previews of a service."""

    @property
    def is_enabled(self) -> bool:
        """True if previews have an address, or get one on demand."""
        ...

    async def require_address(self) -> PreviewAddress:
        """Return the address of the previews. A local service opens its listener first.

        Raises:
            UnsupportedError: The service has no address for previews.
        """
        ...


def no_previews() -> UnsupportedError:
    """Return the error of a service that has no address for previews."""
    return UnsupportedError(
        "The service has no address for previews.",
        code=ErrorCode.UNSUPPORTED,
        hint="Start it with 'sandlot serve --preview-port PORT', or use a tunnel ('sandlot forward').",
    )


def parse_domain(text: str) -> PreviewAddress | None:
    """Return the address that a setting ``[http://|https://]DOMAIN[:PORT]`` names; None if the text has another form.

    Without a scheme, ``localhost`` and its subdomains have ``http``. Other domains have ``https``, because a proxy in front is expected to serve TLS.
    """
    found = _DOMAIN.fullmatch(text)
    if found is None or len(found[2]) > _MAX_DOMAIN or (found[3] is not None and int(found[3]) > _MAX_PORT):
        return None
    domain = found[2].lower()
    is_local = domain == LOCALHOST or domain.endswith(f".{LOCALHOST}")
    scheme = found[1].lower() if found[1] else "http" if is_local else "https"
    return PreviewAddress(scheme, domain, None if found[3] is None else int(found[3]))
