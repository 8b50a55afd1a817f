"""The routes of Tensorlake's API, below ``/tensorlake``."""

from __future__ import annotations

from fastapi import APIRouter

RAW: frozenset[str] = frozenset()

router = APIRouter()
