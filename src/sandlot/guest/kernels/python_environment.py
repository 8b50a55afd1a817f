"""Environment variables and package folders that a Python kernel reads only once.

A kernel that was started ahead of time is used only if both are unchanged.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

STARTUP_VARIABLES = (
    *("PYTHON", "IPYTHON", "LD_", "LANG", "LC_", "MALLOC_", "GLIBC_", "XDG_", "MPL"),
    *("OMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NPY_", "NUMEXPR_"),
)
"""Prefixes of environment variables that programs and libraries read only when they start. A running kernel ignores changes of these variables."""


def startup_variables(env: dict[str, str]) -> dict[str, str]:
    """Return the variables of ``env`` whose names begin with a prefix of ``STARTUP_VARIABLES``."""
    return {name: value for name, value in env.items() if name.startswith(STARTUP_VARIABLES)}


def package_folders(python: str, home: str) -> dict[str, int]:
    """Return the modification times of the folders into which Python packages are installed, and of the ``lib`` folders above them.

    The folders are found without starting Python.

    Args:
        python: Path of the Python interpreter.
        home: Home directory of the user; ``.local/lib`` in this directory is included.

    Returns:
        Path of a folder -> modification time in nanoseconds; 0 if the folder does not exist.
    """
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(python)))
    folders = []
    for root in {prefix, "/usr/local", f"{prefix}/local", f"{home}/.local"}:
        folders.append(f"{root}/lib")
        try:
            versions = [name for name in os.listdir(f"{root}/lib") if name.startswith("python3")]
        except OSError:
            continue
        folders += [f"{root}/lib/{version}/{leaf}" for version in versions for leaf in ("site-packages", "dist-packages")]
    return modified_times(folders)


def modified_times(folders: Iterable[str]) -> dict[str, int]:
    """Return path -> modification time in nanoseconds for each of ``folders``; 0 for a folder that does not exist."""
    times = {}
    for folder in folders:
        try:
            times[folder] = os.stat(folder).st_mtime_ns
        except OSError:
            times[folder] = 0
    return times
