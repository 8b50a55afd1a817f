"""The templates of a service, as ``client.templates``."""

from __future__ import annotations

import builtins

from sandlot.sdk import requests
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.templates import TemplateInfo


class AsyncTemplates:
    """The templates that sandboxes can start from."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> builtins.list[TemplateInfo]:
        """List all templates by name."""
        return structure_list(TemplateInfo, await self._transport.request("GET", "/v1/templates"), "templates")

    async def get(self, template: str) -> TemplateInfo:
        """Get a template by its name.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        return structure(TemplateInfo, await self._transport.request("GET", f"/v1/templates/{requests.path_segment(template)}"))
