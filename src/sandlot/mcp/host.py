"""Protocol of the sandboxes that one caller of the MCP server has, and the values that it returns.

:mod:`sandlot.mcp.hosts.sdk` and :mod:`sandlot.mcp.hosts.node` implement it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sandlot.toolset.backend import ToolBackend

IDLE_TIMEOUT_S = 30 * 60.0
"""Idle timeout of sandboxes that the MCP server creates; the sessions of clients have the same."""
TIMEOUT_S = 6 * 3600.0
"""Default timeout of sandboxes that the MCP server creates."""
MAX_LISTED = 200
"""Largest number of sandboxes that are listed."""


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """Options of a new sandbox.

    Args:
        template: Template to start from; None for the default.
        snapshot: Snapshot to start from in place of a template.
        name: Name of the sandbox.
        timeout_s: Seconds until the sandbox ends; None for the default.
        network: Mode of the network policy; None for the default.
    """

    template: str | None = None
    snapshot: str | None = None
    name: str | None = None
    timeout_s: float | None = None
    network: str | None = None


@dataclass(frozen=True, slots=True)
class SandboxSummary:
    """One sandbox."""

    id: str
    state: str
    template: str
    name: str | None
    created_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Port:
    """A port on which a program listens; ``url`` is None if the service serves no previews."""

    port: int
    address: str
    url: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Equal refusals of connections or requests."""

    reason: str
    host: str
    port: int
    method: str
    path: str
    count: int


@dataclass(frozen=True, slots=True)
class NetworkReport:
    """Mode of the network policy of a sandbox, and what it has refused, the newest last."""

    mode: str
    refusals: Sequence[Refusal]


class SandboxHost(Protocol):
    """Sandboxes of one caller. Each method raises :class:`sandlot.model.errors.SandlotError` if it fails. Sandboxes are named by id or name."""

    async def create(self, options: CreateOptions) -> ToolBackend:
        """Create a sandbox."""
        ...

    async def open(self, sandbox: str) -> ToolBackend:
        """Return an existing sandbox."""
        ...

    async def list(self) -> Sequence[SandboxSummary]:
        """Return the live sandboxes, at most ``MAX_LISTED``."""
        ...

    async def kill(self, sandbox: str) -> None:
        """End a sandbox."""
        ...

    async def snapshot(self, sandbox: str, name: str | None) -> str:
        """Save a sandbox, and return the id of the snapshot."""
        ...

    async def fork(self, sandbox: str, count: int) -> Sequence[str]:
        """Copy a running sandbox, and return the ids of the copies."""
        ...

    async def list_ports(self, sandbox: str) -> Sequence[Port]:
        """Return the ports on which programs in a sandbox listen."""
        ...

    async def network(self, sandbox: str) -> NetworkReport:
        """Return the refusals of the network policy of a sandbox."""
        ...
