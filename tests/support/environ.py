"""Environment of programs that tests start."""

from __future__ import annotations

import os


def clean_environ() -> dict[str, str]:
    """Return the environment of this process without Sandlot's variables, except those that no test may leave out.

    No test reads the settings of the machine, sandboxes of tests take no more of its disk than they write, and the default template is the slim one.
    """
    kept = {"SANDLOT_CONFIG", "SANDLOT_DISK_RATIO", "SANDLOT_TEMPLATE_ALIASES"}
    return {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_") or name in kept}
