"""One check in its own process: ``python -m sandlot.host.checks MODULE:FUNCTION KEYWORDS PARENT``; see ``runner.py``."""

from __future__ import annotations

import sys

from sandlot.host.checks.runner import run_in_child

run_in_child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
