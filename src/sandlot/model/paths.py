"""Paths inside of every sandbox."""

from __future__ import annotations

from typing import Final

WORKSPACE: Final = "/workspace"
"""Folder in which processes start, with the code of a program and the files that its compiler writes."""
