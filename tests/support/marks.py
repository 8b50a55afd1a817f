"""Marks of the test that runs now, for helpers that no fixture passes a request to."""

from __future__ import annotations

real_guest = False
"""Whether it is marked ``real_guest``. Set by tests/conftest.py."""
