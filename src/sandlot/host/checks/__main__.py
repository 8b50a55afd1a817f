"""Runs one check in its own process, started by ``runner.py``: ``python -m sandlot.host.checks MODULE:FUNCTION KEYWORDS PARENT``.

KEYWORDS are the keyword arguments of the function, as a JSON object. PARENT is the pid of the process that runs ``runner.py``.
"""

from __future__ import annotations

import sys

from sandlot.host.checks.runner import run_in_child

run_in_child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
