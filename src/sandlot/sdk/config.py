"""Address and API key of a service, from arguments and environment variables. Pure.

An argument takes precedence over its environment variable, and the variable over the default. Without ``SANDLOT_URL``, the service is the local one
of ``SANDLOT_DATA_DIR``, which a client starts if it is not running. A service with a URL is never started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandlot.model.errors import InvalidRequestError

DATA_DIR = Path("/var/lib/sandlot")
"""Default data directory."""
SOCKET = "sandlot.sock"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Target:
    """Address of one service.

    Args:
        base_url: URL to which paths are appended, without a slash at its end.
        socket: Unix socket of the service; None for TCP.
        local: Data directory of a local service, which a client starts if it is not running; None for other services.
        api_key: API key to send.
    """

    base_url: str
    socket: Path | None = None
    local: Path | None = None
    api_key: str | None = None

    @property
    def proxied(self) -> bool:
        """True if the proxies of the environment apply: not for unix sockets and this machine."""
        return self.socket is None and urlsplit(self.base_url).hostname not in LOOPBACK

    def __str__(self) -> str:
        """Return the service's name in messages."""
        return f"the Sandlot service at {self.base_url if self.socket is None else self.socket}"


def resolve(env: Mapping[str, str], *, url: str | None = None, api_key: str | None = None, data_dir: str | Path | None = None) -> Target:
    """Return the service that arguments and environment select.

    Args:
        env: Environment with ``SANDLOT_URL``, ``SANDLOT_API_KEY`` and ``SANDLOT_DATA_DIR``.
        url: ``http://host:port``, ``https://host`` or ``unix:///path/of/socket``. A path in the URL is a prefix of all paths.
        api_key: API key, needed over TCP.
        data_dir: Data directory of the local service.

    Raises:
        InvalidRequestError: The URL has another form.
    """
    url = url or env.get("SANDLOT_URL") or None
    api_key = api_key or env.get("SANDLOT_API_KEY") or None
    if url is None:
        directory = Path(data_dir or env.get("SANDLOT_DATA_DIR") or DATA_DIR).absolute()
        return Target(base_url="http://sandlot", socket=directory / SOCKET, local=directory, api_key=api_key)
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Target(base_url="http://sandlot", socket=Path(parts.path), api_key=api_key)
    if parts.scheme in {"http", "https"} and parts.hostname:
        return Target(base_url=url.rstrip("/"), api_key=api_key)
    raise InvalidRequestError(f"{url!r} is not the URL of a service.", hint="Set SANDLOT_URL to http://HOST:PORT, https://HOST or unix:///PATH.")
