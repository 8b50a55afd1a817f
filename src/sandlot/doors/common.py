"""Metadata names that several compatibility APIs set on their sandboxes."""

from __future__ import annotations

from typing import Final

VENDOR_KEY: Final = "sandlot.api"
"""Metadata name whose value is the name of the compatibility API that created the sandbox."""
TEMPLATE_KEY: Final = "sandlot.api.template"
"""Metadata name whose value is the template as the client named it."""
