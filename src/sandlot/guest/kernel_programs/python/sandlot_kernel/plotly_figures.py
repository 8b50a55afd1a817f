"""Figures of plotly: ``show()`` and the value of a cell give one result, with the figure's data and HTML that draws it.

A renderer that an image or a cell has selected (``PLOTLY_RENDERER``, ``plotly.io.renderers.default``) is used instead of the default one. Renderers
that would open a browser or first display a script for a notebook give the HTML.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

from .import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_WITHOUT_FRONT_END = ("notebook", "notebook_connected", "kaggle", "azure", "browser", "firefox", "chrome", "chromium")


def install() -> None:
    """Adapt plotly now if it is imported already, or when it is imported later."""
    after_import("plotly.io._renderers", _adapt)


def _adapt(module: Any) -> None:
    try:
        if not module.nbformat:
            module.nbformat = SimpleNamespace(__version__="5.10.4")  # plotly reads the version, to find out if a notebook shows results, and no more
        html = sys.modules["plotly.io._base_renderers"].HtmlRenderer(connected=True)
        html.requirejs = False  # plotly 4 and 5 would expect a loader of scripts, which an earlier result has to set up
        for name in _WITHOUT_FRONT_END:
            module.renderers[name] = html
        if not os.environ.get("PLOTLY_RENDERER"):
            module.renderers.default = "plotly_mimetype+notebook"
    except Exception:  # noqa: BLE001, S110 - these names are not part of plotly's public interface; without them, plotly works as usual
        pass
