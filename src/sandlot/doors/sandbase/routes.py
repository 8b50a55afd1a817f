"""The routes of Sandbase's API, below ``/sandbase``."""

from __future__ import annotations

from fastapi import APIRouter

RAW: frozenset[str] = frozenset()

router = APIRouter()
