"""Environment of programs that tests start."""

from __future__ import annotations

import os


def clean_environ() -> dict[str, str]:
    """Return the environment of this process without Sandlot's variables, except SANDLOT_CONFIG: no test reads the settings of the machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SANDLOT_") or name == "SANDLOT_CONFIG"}
