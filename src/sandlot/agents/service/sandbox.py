"""The sandbox of a session: created for the first call of a tool, and again after it has ended.

Invariant: the session names its sandbox before the sandbox is used, so that a killed service leaves no work in a sandbox that nobody finds.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Final

from sandlot.core.node import Node
from sandlot.host.blocking import outlast_cancellation
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.agents import MOST_OPEN_NETWORK, AgentSessionRecord, SessionChange
from sandlot.model.errors import SandlotError
from sandlot.model.ids import SandboxId
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy, NetworkUpTo
from sandlot.model.sandboxes import CreateSandboxParams, SandboxFilter, UpdateSandboxParams
from sandlot.model.specs import DEFAULT_TIMEOUT_S
from sandlot.toolset.backends.node import NodeBackend
from sandlot.toolset.output import Image, Text, ToolResult
from sandlot.web.preview_urls import PreviewAddresses

SESSION: Final = "sandlot.agent_session"
"""Key in the metadata of a sandbox: id of the session that uses it."""


async def find_sandbox(node: Node, session: AgentSessionRecord) -> SandboxId | None:
    """Return the live sandbox of a session; None if there is none. It finds a sandbox whose id a killed service has not stored in the session."""
    found = await node.sandboxes.list(OPERATOR, SandboxFilter(metadata={SESSION: session.id}), after=None, limit=100)
    return next((each.id for each in found.items if each.owner == session.owner), None)


class SessionSandbox:
    """Sandbox of one session.

    Args:
        node: Node of the sandbox.
        principal: Owner of the session and of the sandbox.
        session: The session.
        previews: Address of the previews. None: the ports of sandboxes have no URLs.
    """

    def __init__(self, node: Node, principal: Principal, session: AgentSessionRecord, previews: PreviewAddresses | None) -> None:
        self._node = node
        self._principal = principal
        self._session = session
        self._previews = previews
        self.id: SandboxId | None = session.sandbox

    async def open(self) -> NodeBackend:
        """Return the sandbox, and create it if there is none. Its timeout is counted from now.

        Raises:
            SandlotError: The sandbox has ended, or cannot be created.
        """
        longest_s = self._principal.quota.lifetime_s or DEFAULT_TIMEOUT_S
        timeout_s = self._session.environment.timeout_s or min(DEFAULT_TIMEOUT_S, longest_s)
        if self.id is None:
            self.id = (await self._node.sandboxes.create(self._principal, self._params(timeout_s))).id
            await outlast_cancellation(self._node.agents.append(self._session.id, change=SessionChange(sandbox=self.id)))
        else:
            await self._node.sandboxes.update(self._principal, self.id, UpdateSandboxParams(timeout_s=timeout_s))
        return NodeBackend(self._node, self._principal, self.id, previews=self._previews, origin="agents")

    def forget(self) -> None:
        """Create another sandbox for the next call, because this one has ended."""
        self.id = None

    async def store_images(self, result: ToolResult) -> tuple[Mapping[Image, str], ToolResult]:
        """Store the images of a result as files of the owner.

        Returns:
            Image -> id of its file, and the result, in which a text replaces each image that could not be stored.
        """
        files: dict[Image, str] = {}
        content: list[Text | Image] = []
        for each in result.content:
            if isinstance(each, Image) and each not in files:
                try:
                    stored = await self._node.file_store.upload(
                        self._principal,
                        _one(base64.b64decode(each.data)),
                        filename=f"image.{each.media_type.partition('/')[2]}",
                        media_type=each.media_type,
                    )
                except SandlotError as error:
                    content.append(Text(f"[an image could not be stored: {error}]"))
                    continue
                files[each] = stored.id
            content.append(each)
        return files, replace(result, content=tuple(content))

    def _params(self, timeout_s: float) -> CreateSandboxParams:
        mode = self._session.environment.network
        network: NetworkPolicy | NetworkUpTo | None = None
        if mode is not None:
            network = MOST_OPEN if mode == MOST_OPEN_NETWORK else NetworkPolicy(NetworkMode(mode))
        return CreateSandboxParams(
            template=self._session.environment.template,
            metadata={SESSION: self._session.id},
            timeout_s=timeout_s,
            network=network,
        )


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content
