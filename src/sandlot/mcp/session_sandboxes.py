"""The sandbox of each session of a client.

Invariants:
- Of several calls of a session that need its sandbox at once, one creates it.
- A session never gets the sandbox of another session.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Final

import anyio

from sandlot.mcp.host import CreateOptions, SandboxHost
from sandlot.model.errors import SandlotError
from sandlot.toolset.backend import ToolBackend

END_S: Final = 30.0
"""Seconds that the end of a sandbox may take."""


class SessionSandbox:
    """The sandbox of one session, which the first call creates and later calls use.

    Attributes:
        sandbox: Id of the sandbox; None before the first call and after the end of the sandbox.
    """

    def __init__(self) -> None:
        self.sandbox: str | None = None
        self._lock = asyncio.Lock()

    async def open(self, host: SandboxHost) -> tuple[ToolBackend, bool]:
        """Return the sandbox, and True if this call has created it."""
        async with self._lock:
            if self.sandbox is not None:
                return await host.open(self.sandbox), False
            backend = await host.create(CreateOptions())
            self.sandbox = backend.id
            return backend, True

    async def end(self, host: SandboxHost) -> None:
        """End the sandbox, if there is one."""
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            with anyio.move_on_after(END_S, shield=True), suppress(SandlotError):  # otherwise its timeout ends it
                await host.kill(sandbox)

    def forget(self, sandbox: str) -> None:
        """Forget a sandbox that has ended."""
        if self.sandbox == sandbox:
            self.sandbox = None


class SessionSandboxes:
    """The sandboxes of all sessions, by session id.

    Args:
        max_kept: Maximum number of sessions. Beyond it, the sessions that were used longest ago are forgotten; their sandboxes end at their timeouts.
    """

    def __init__(self, max_kept: int) -> None:
        self._max_kept = max_kept
        self._kept: OrderedDict[str, SessionSandbox] = OrderedDict()

    def get(self, session: str) -> SessionSandbox:
        """Return the sandbox of a session."""
        found = self._kept.get(session)
        if found is None:
            found = self._kept[session] = SessionSandbox()
            while len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)
        self._kept.move_to_end(session)
        return found

    def pop(self, session: str) -> SessionSandbox | None:
        """Remove and return the sandbox of a session that has ended."""
        return self._kept.pop(session, None)

    def __len__(self) -> int:
        return len(self._kept)
