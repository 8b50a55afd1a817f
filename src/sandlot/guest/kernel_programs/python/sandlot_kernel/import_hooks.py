"""Callbacks for modules that a cell imports. A kernel adapts some libraries to itself, and does not import them for this."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_callbacks: dict[str, Callable[[Any], None]] = {}


class _Finder:
    """Finder for ``sys.meta_path`` that lets Python find a module as usual, and calls the module's callback after the import."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        """Return the spec of a module that has a callback, with a loader that also calls the callback; None for any other module."""
        callback = _callbacks.get(name)
        if callback is None:
            return None
        spec = PathFinder.find_spec(name, path)
        loader: Any = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_call(module: Any) -> None:
            execute(module)
            callback(module)

        loader.exec_module = execute_and_call
        return spec


def after_import(name: str, callback: Callable[[Any], None]) -> None:
    """Call a function with a module: now if the module is imported already, otherwise after its import.

    Args:
        name: Full name of the module.
        callback: The function. A later call for the same module replaces it.
    """
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    if not _callbacks:
        sys.meta_path.insert(0, _Finder())
    _callbacks[name] = callback
