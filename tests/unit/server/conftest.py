"""A service of its own for every test that asks for one, with the node in memory or a scripted node, and its HTTP on a unix socket."""

from __future__ import annotations

from tests.support.scripted_app import api, local, scripted, served
from tests.support.serving import at, folder, http

__all__ = ["api", "at", "folder", "http", "local", "scripted", "served"]
