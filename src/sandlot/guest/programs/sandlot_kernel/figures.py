"""Matplotlib's figures are shown inline, without an environment variable that children would inherit.

Laws:
- Whoever imports Matplotlib in a kernel finds the inline backend chosen, unless the environment or the cell chooses one other than Agg
  (which images set for programs without a kernel).
- A figure that was the value of a cell's last expression is not shown a second time when the cell ends.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BACKEND = "module://matplotlib_inline.backend_inline"
_SHOWN: list[Any] = []


class _Finder:
    """Finds Matplotlib as Python would, and has the last word when it is imported."""

    def find_spec(self, name: str, path: Any = None, _target: Any = None) -> Any:
        """The finder's one method."""
        if name != "matplotlib":
            return None
        spec = PathFinder.find_spec(name, path)
        loader: Any = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def execute_and_choose(module: Any) -> None:
            execute(module)
            _choose(module)

        loader.exec_module = execute_and_choose
        return spec


def install() -> None:
    """Choose the backend now or when Matplotlib is imported."""
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is not None:
        _choose(matplotlib)
    elif PathFinder.find_spec("matplotlib_inline") is not None:
        sys.meta_path.insert(0, _Finder())


def is_figure(shown: object) -> bool:
    """Whether something is a figure of Matplotlib."""
    figure = sys.modules.get("matplotlib.figure")
    return figure is not None and isinstance(shown, figure.Figure)


def shown(result: object) -> None:
    """A result was shown: remember it if it is a figure."""
    if is_figure(result):
        _SHOWN.append(result)


def drop_shown() -> None:
    """A cell ends: what was shown already is not shown again."""
    if not _SHOWN:
        return
    figures = list(_SHOWN)
    _SHOWN.clear()
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is None:
        return
    for figure in figures:
        if inline.InlineBackend.instance().close_figures:
            inline.Gcf.destroy_fig(figure)
        if figure in inline.show._to_draw:  # noqa: SLF001 - the backend's own list of what its next show() draws
            inline.show._to_draw.remove(figure)  # noqa: SLF001


def _choose(matplotlib: Any) -> None:
    if os.environ.get("MPLBACKEND", "agg").lower() in {"", "agg"}:
        matplotlib.rcParams["backend"] = BACKEND
