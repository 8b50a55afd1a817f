"""Runs one check in its own process, started by ``runner.py``: ``python -m sandlot.host.checks MODULE:FUNCTION KEYWORDS PARENT``."""

from __future__ import annotations

import sys

from sandlot.host.checks.runner import run_in_child

run_in_child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
