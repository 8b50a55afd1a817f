"""The compatibility APIs of the service."""

from __future__ import annotations

from typing import Final

from sandlot.compat import agentsandbox, e2b, pandastack, sandbase, sandboxapi, tensorlake

VENDORS: Final = (agentsandbox.API, e2b.API, pandastack.API, sandbase.API, sandboxapi.API, tensorlake.API)
"""Compatibility APIs, each below its own prefix. The OpenAPI document has none of them."""
