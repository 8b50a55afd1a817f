"""Print the coverage of lines and branches of each package, from the data of `scripts/test --coverage`.

python -m tests.support.covered REPORT    REPORT is a file that `coverage json` wrote
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Print a table; the exit status."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name, file in report["files"].items():
        package = name.rpartition("sandlot/")[2].partition("/")[0].removesuffix(".py")
        counts = [file["summary"][key] for key in ("covered_lines", "num_statements", "covered_branches", "num_branches")]
        for each in (package, "all"):
            totals[each] = [before + count for before, count in zip(totals[each], counts, strict=True)]
    print(f"{'package':12} {'lines':>8} {'branches':>8} {'both':>8}")
    for package, (lines, of_lines, branches, of_branches) in sorted(totals.items(), key=lambda row: (row[0] == "all", row[0])):
        shares = [(lines, of_lines), (branches, of_branches), (lines + branches, of_lines + of_branches)]
        print(f"{package:12} " + " ".join(f"{100 * covered / count if count else 100:7.1f}%" for covered, count in shares))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
