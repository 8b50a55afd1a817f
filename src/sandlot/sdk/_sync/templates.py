# Made from src/sandlot/sdk/_async/templates.py by scripts/unasync.py; change that file, not this one.
"""The templates of a service, as ``client.templates``."""

from __future__ import annotations

import builtins
from typing import Any

from sandlot.sdk import requests
from sandlot.sdk._sync.transport import Transport


class Templates:
    """The templates that sandboxes can start from."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(self) -> builtins.list[dict[str, Any]]:
        """List all templates by name."""
        response = self._transport.request("GET", "/v1/templates")
        return [*response["templates"]]

    def get(self, template: str) -> dict[str, Any]:
        """Get a template by its name.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        return self._transport.request("GET", f"/v1/templates/{requests.path_segment(template)}")
