"""E2B's words into ours and back. Pure."""

from __future__ import annotations

NAME = "e2b"
