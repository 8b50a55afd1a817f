"""Previews: HTTP access from a browser to servers that listen on ports inside sandboxes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ids import SANDBOX_ID, SandboxId

DEFAULT_PREVIEW_LIFETIME_S: Final = 24 * 3600.0
MAX_PREVIEW_LIFETIME_S: Final = 7 * 24 * 3600.0
"""Longest lifetime of a preview token: 7 days, as with signed URLs of files."""

MAX_PORT: Final = 65535

_LABEL = re.compile(rf"([0-9]{{1,5}})-({SANDBOX_ID.pattern})")


def preview_label(sandbox: SandboxId, port: int) -> str:
    """Return the name of a port of a sandbox, ``PORT-SANDBOX``: the first label of a preview's host name, and the beginning of its token."""
    return f"{port}-{sandbox}"


def parse_preview_label(label: str) -> tuple[SandboxId, int] | None:
    """Return the sandbox and the port of a label; None if the text is no such label. The port may be out of range."""
    found = _LABEL.fullmatch(label)
    return None if found is None else (SandboxId(found[2]), int(found[1]))


def check_port(port: int) -> None:
    """Refuse a port number that is out of range.

    Raises:
        InvalidRequestError: The port is not from 1 to 65,535.
    """
    if not 0 < port <= MAX_PORT:
        raise InvalidRequestError(f"`port` is {port}; it must be from 1 to {MAX_PORT}.", fields={"field": "port"})


@dataclass(frozen=True, slots=True)
class PreviewToken:
    """A token that opens one port of one sandbox.

    Args:
        value: The token, which begins with the label of the port and a dot. All of its characters may stand in a path of a URL.
        expires_at: Time of expiry, UTC.
        public: True if the port can be opened without the token as well.
    """

    value: str
    expires_at: datetime
    public: bool


@dataclass(frozen=True, slots=True)
class PreviewAccess:
    """Permission for one request to a port of a sandbox.

    Args:
        principal: Principal in whose name the request is made: the owner of the sandbox, or the key that signed the token.
        sandbox: Id of the sandbox.
        port: Port inside the sandbox.
        host: Host that the program on the port sees in the request.
        is_running: True if the sandbox runs; False if it is suspended and a new connection resumes it.
        token: Token that opened the port; None if the port is public.
        lifetime_s: Seconds until the token expires; None if it does not expire, or the port is public.
    """

    principal: Principal
    sandbox: SandboxId
    port: int
    host: str
    is_running: bool
    token: str | None = None
    lifetime_s: float | None = None
