"""The routes of E2B's API, below ``/e2b``."""

from __future__ import annotations

from fastapi import APIRouter

RAW: frozenset[str] = frozenset()

router = APIRouter()
