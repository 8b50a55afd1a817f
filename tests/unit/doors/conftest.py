"""A service of its own for every test that asks for one, and its HTTP on a unix socket."""

from __future__ import annotations

from tests.support.serving import at, folder, http

__all__ = ["at", "folder", "http"]
