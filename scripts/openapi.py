#!/usr/bin/env python3
"""Writes docs/openapi.json: the API as its routes say it, so that a change of the API is seen in a review.

scripts/openapi.py            write it
scripts/openapi.py --check    say what differs, and exit with 1 if anything does
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path

from sandlot.server.app import create_routes
from sandlot.server.openapi import document

TARGET = Path(__file__).resolve().parents[1] / "docs" / "openapi.json"


def main(arguments: list[str]) -> int:
    """Write or check; the exit status."""
    now = json.dumps(document(create_routes().routes), indent=1, ensure_ascii=False) + "\n"
    frozen = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
    if now == frozen:
        return 0
    if "--check" not in arguments:
        TARGET.write_text(now, encoding="utf-8")
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(frozen.splitlines(keepends=True), now.splitlines(keepends=True), "docs/openapi.json", "the routes", n=1)
    )
    print("The routes are not what docs/openapi.json says. Where that is meant, run `.venv/bin/python scripts/openapi.py` and commit it.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
