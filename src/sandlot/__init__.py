"""Sandlot: a safe place for AI agents to run code.

The names that users meet are re-exported here lazily, so that ``import sandlot`` pulls in no server part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandlot.model.errors import ErrorCode, SandlotError
    from sandlot.sdk import AsyncClient, AsyncSandbox, Client, CommandResult, Execution, Sandbox

__all__ = ["AsyncClient", "AsyncSandbox", "Client", "CommandResult", "ErrorCode", "Execution", "Sandbox", "SandlotError", "__version__"]

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "sandlot.sdk",
    "AsyncSandbox": "sandlot.sdk",
    "Client": "sandlot.sdk",
    "CommandResult": "sandlot.sdk",
    "ErrorCode": "sandlot.model.errors",
    "Execution": "sandlot.sdk",
    "Sandbox": "sandlot.sdk",
    "SandlotError": "sandlot.model.errors",
}


if not TYPE_CHECKING:  # a type checker would otherwise believe every name

    def __getattr__(name: str) -> object:
        """Import a public name on first use (PEP 562)."""
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'sandlot' has no attribute {name!r}")
        import importlib  # noqa: PLC0415 - only paid for when a public name is used

        return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    """The public names, whether they have been used or not."""
    return sorted({*globals(), *__all__})
