"""Draws docs/states.md from the tables of src/sandlot/model/states.py. ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from sandlot.model.states import SETTLEMENT, TRANSITIONS, State, is_half_done, is_terminal

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"

HEAD = """\
# The states of a sandbox

Drawn by `scripts/states.py` from the tables in `src/sandlot/model/states.py`; do not edit it. A state is recorded before the work begins
that it speaks of. Every sandbox that is recorded in a state has, after a start of the service, gone on as the last column says.

```mermaid
stateDiagram-v2
"""

TABLE = """\
```

| state | what it is | may be followed by | what the next start of the service does |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    arrows = [f"    {now} --> {then}\n" for now in State for then in State if then in TRANSITIONS[now]]
    ends = [f"    {state} --> [*]\n" for state in State if is_terminal(state)]
    then = {state: ", ".join(f"`{each}`" for each in State if each in TRANSITIONS[state]) or "nothing" for state in State}
    rows = [f"| `{state}` | {_kind(state)} | {then[state]} | {SETTLEMENT[state]} |\n" for state in State]
    return "".join([HEAD, f"    [*] --> {State.CREATING}\n", *arrows, *ends, TABLE, *rows])


def _kind(state: State) -> str:
    if is_terminal(state):
        return "the end"
    return "half done" if is_half_done(state) else "lasts"


def main(arguments: list[str]) -> int:
    """Write it, or compare; the exit code."""
    if "--check" in arguments:
        fresh = PAGE.exists() and PAGE.read_text("utf-8") == page()
        if not fresh:
            print(f"{PAGE.name} is stale: run scripts/states.py")
        return 0 if fresh else 1
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
