# Generated from src/sandlot/sdk/_async/templates.py by scripts/unasync.py; change that file.
"""The templates of a service, as ``client.templates``."""

from __future__ import annotations

import builtins

from sandlot.sdk import requests
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.templates import TemplateInfo


class Templates:
    """The templates that sandboxes can start from."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> builtins.list[TemplateInfo]:
        """List all templates by name."""
        return structure_list(TemplateInfo, self._transport.request("GET", "/v1/templates"), "templates")

    def get(self, template: str) -> TemplateInfo:
        """Get a template by its name.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        return structure(TemplateInfo, self._transport.request("GET", f"/v1/templates/{requests.path_segment(template)}"))
