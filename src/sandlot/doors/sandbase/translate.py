"""Sandbase's words into ours and back. Pure."""

from __future__ import annotations

NAME = "sandbase"
