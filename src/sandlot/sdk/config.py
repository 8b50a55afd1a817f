"""Where the service is: decided from arguments and environment, without looking.

Laws:
- An argument wins over the environment, the environment over the default.
- ``SANDLOT_URL`` unset means the local service of ``SANDLOT_DATA_DIR``, which is started when it is not there; a URL that
  was given is used as it is and nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandlot.model.errors import InvalidRequestError

DATA_DIR = Path("/var/lib/sandlot")
"""State directory of a service that runs as root."""
SOCKET = "sandlot.sock"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Target:
    """One service.

    Args:
        base_url: What paths are appended to, without a slash at its end.
        socket: The unix socket that carries it; None for TCP.
        local: The state directory of the service that is started when it is not there; None where nothing is started.
        api_key: The key to send.
    """

    base_url: str
    socket: Path | None = None
    local: Path | None = None
    api_key: str | None = None

    @property
    def proxied(self) -> bool:
        """Whether the proxies of the environment are for it: not for a socket, nor for this machine."""
        return self.socket is None and urlsplit(self.base_url).hostname not in LOOPBACK

    def __str__(self) -> str:
        """The service for a message to a person."""
        return f"the service at {self.base_url}" if self.socket is None else f"the service on {self.socket}"


def resolve(env: Mapping[str, str], *, url: str | None = None, api_key: str | None = None, data_dir: str | Path | None = None) -> Target:
    """Find the service.

    Args:
        env: The environment: ``SANDLOT_URL``, ``SANDLOT_API_KEY``, ``SANDLOT_DATA_DIR``.
        url: ``http://host:port``, ``https://host`` or ``unix:///path/of/socket``; a path is kept as a prefix.
        api_key: The key, needed over TCP.
        data_dir: State directory of the local service.

    Raises:
        InvalidRequestError: The URL is none of these.
    """
    url = url or env.get("SANDLOT_URL") or None
    api_key = api_key or env.get("SANDLOT_API_KEY") or None
    if url is None:
        folder = Path(data_dir or env.get("SANDLOT_DATA_DIR") or DATA_DIR).absolute()
        return Target(base_url="http://sandlot", socket=folder / SOCKET, local=folder, api_key=api_key)
    parts = urlsplit(url)
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return Target(base_url="http://sandlot", socket=Path(parts.path), api_key=api_key)
    if parts.scheme in {"http", "https"} and parts.hostname:
        return Target(base_url=url.rstrip("/"), api_key=api_key)
    raise InvalidRequestError(f"{url!r} is no address of a service.", hint="SANDLOT_URL is http://HOST:PORT, https://HOST or unix:///PATH.")
