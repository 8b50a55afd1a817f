"""The routes of PandaStack's API, below ``/pandastack``."""

from __future__ import annotations

from fastapi import APIRouter

RAW: frozenset[str] = frozenset()

router = APIRouter()
