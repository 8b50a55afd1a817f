"""``python -m sandlot.cli``."""

from __future__ import annotations

from sandlot.cli.main import main

main()
