"""One check, as a process of its own: ``python -m sandlot.host.checks MODULE:FUNCTION KEYWORDS PARENT``; see ``children.py``."""

from __future__ import annotations

import sys

from sandlot.host.checks.children import carry_out

carry_out(sys.argv[1], sys.argv[2], int(sys.argv[3]))
