"""The templates of a service, as ``client.templates``."""

from __future__ import annotations

import builtins
from typing import Any

from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncTransport


class AsyncTemplates:
    """The templates that sandboxes can start from."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[dict[str, Any]]:
        """List all templates by name."""
        response = await self._transport.request("GET", "/v1/templates")
        return [*response["templates"]]

    async def get(self, template: str) -> dict[str, Any]:
        """Get a template by its name.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        return await self._transport.request("GET", f"/v1/templates/{requests.path_segment(template)}")
