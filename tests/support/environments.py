"""Virtual environments with the packages of a lock and with the wheel of this repository."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from tests.meta.tree import ROOT

INSTALL = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-config", "--no-deps", "--only-binary", ":all:", "--python")
"""Command that installs into the environment of a Python, which is its next argument."""


def create_environment(lock: str, folder: Path) -> Path:
    """Create a virtual environment with the packages of a lock.

    Args:
        lock: Path of the lock in the repository.
        folder: Folder of the environment.

    Returns:
        Path of its Python.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    subprocess.run([*INSTALL, python, "--require-hashes", "--requirement", ROOT / lock], check=True, capture_output=True)
    return python


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository in a folder, and return its path."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("sandlot-*.whl")
    return built
