"""Inline figures of Matplotlib: figures that a cell leaves open are sent to the client as images at the end of the cell.

- When Matplotlib is imported in a kernel, the inline backend is selected, unless the environment or the cell selects a backend other than
  Agg. Agg is overridden because many images and users set MPLBACKEND to Agg for programs without a display.
- The inline backend is not selected with the environment variable MPLBACKEND, because child processes would inherit it.
- A figure that is the value of the last expression of a cell is shown as the result of the cell, and not again at the end of the cell.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

from .import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BACKEND = "module://matplotlib_inline.backend_inline"
_shown_figures: list[Any] = []


def install() -> None:
    """Select the inline backend now if Matplotlib is imported already, or when Matplotlib is imported later."""
    if "matplotlib" in sys.modules or PathFinder.find_spec("matplotlib_inline") is not None:
        after_import("matplotlib", _select_backend)


def is_figure(shown: object) -> bool:
    """Return True if an object is a Matplotlib ``Figure``. Matplotlib is not imported for this check."""
    figure = sys.modules.get("matplotlib.figure")
    return figure is not None and isinstance(shown, figure.Figure)


def remember_shown(result: object) -> None:
    """Remember a result that was displayed, so that :func:`drop_shown` finds it. Does nothing if the result is not a figure."""
    if is_figure(result):
        _shown_figures.append(result)


def drop_shown() -> None:
    """Prevent the backend from showing figures again at the end of the cell if the cell has already displayed them as results."""
    if not _shown_figures:
        return
    figures = list(_shown_figures)
    _shown_figures.clear()
    inline = sys.modules.get("matplotlib_inline.backend_inline")
    if inline is None:
        return
    for figure in figures:
        if inline.InlineBackend.instance().close_figures:
            inline.Gcf.destroy_fig(figure)
        if figure in inline.show._to_draw:  # noqa: SLF001 - the figures that the backend's next show() draws
            inline.show._to_draw.remove(figure)  # noqa: SLF001


def _select_backend(matplotlib: Any) -> None:
    if os.environ.get("MPLBACKEND", "agg").lower() in {"", "agg"}:
        matplotlib.rcParams["backend"] = BACKEND
