"""Cache directory of the tests and benchmarks: the one of the machine, because building its images takes minutes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sandlot.server.settings import SYSTEM_CACHE_DIR

CACHE_DIR: Final = Path(os.environ.get("SANDLOT_CACHE_DIR") or SYSTEM_CACHE_DIR)
