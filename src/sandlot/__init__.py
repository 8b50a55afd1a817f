"""Sandlot: a safe place for AI agents to run code.

The names that users meet are re-exported here lazily, so that ``import sandlot`` pulls in no server part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandlot.model.errors import SandlotError
    from sandlot.sdk import AsyncSandbox, Execution, Sandbox

__all__ = ["AsyncSandbox", "Execution", "Sandbox", "SandlotError", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "AsyncSandbox": "sandlot.sdk",
    "Execution": "sandlot.sdk",
    "Sandbox": "sandlot.sdk",
    "SandlotError": "sandlot.model.errors",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        msg = f"module 'sandlot' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib  # noqa: PLC0415 - only paid for when a public name is used

    return getattr(importlib.import_module(home), name)
