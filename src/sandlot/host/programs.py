"""Programs on PATH: search, identity, age and origin.

Invariants:
- A program is identified by the SHA-256 of its content, because its package may be replaced while the service runs.
- The origin is that of the file at the path: a file that replaced one of ``scripts/setup`` is not reported as that one.

Imports only the standard library, because ``sandlot version`` loads this module.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_OUTPUT_TIMEOUT_S = 30.0
_PACKAGE_FILES = Path("/var/lib/dpkg/info")
_DATE = re.compile(r"(?:^|[-~.])(20\d{2})(\d{2})(\d{2})(?:\.|$)")


@dataclass(frozen=True, slots=True)
class InstalledProgram:
    """A program that is installed on this host.

    Args:
        name: File name.
        path: Absolute path.
        version: Version that the program reports.
        build_date: Date in the version, such as ``2024-07-29``; empty if the version has none.
        source: Origin, such as a Debian package with its version, or the address that ``scripts/setup`` installed the file from.
    """

    name: str
    path: Path
    version: str
    build_date: str
    source: str


def find_programs(name: str, search_path: str | None = None) -> Iterator[tuple[Path, str]]:
    """Yield each program with this name, and the first line that it prints for ``--version``, in the order of the search path.

    Args:
        name: File name of the program.
        search_path: Folders, separated by colons. None: PATH of this process.
    """
    folders = (search_path if search_path is not None else os.environ.get("PATH", os.defpath)).split(":")
    # access(2) is called before is_file(), which raises for a folder that this user may not enter.
    candidates = {file.resolve(): None for folder in folders if os.access(file := Path(folder, name), os.X_OK) and file.is_file()}
    for file in candidates:
        try:
            output = run_program(file, "--version")
        except (OSError, subprocess.TimeoutExpired):
            continue
        if output.returncode == 0:
            yield file, output.stdout.decode(errors="replace").partition("\n")[0].strip()


def run_program(file: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program with an empty environment and return its output.

    Raises:
        OSError: The program cannot be run.
        subprocess.TimeoutExpired: The program ran for more than 30 seconds.
    """
    return subprocess.run([str(file), *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=_OUTPUT_TIMEOUT_S, check=False, env={})


def content_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def date_of_version(version: str) -> str:
    """Return the date in a version such as ``0.0~20240729.0`` or ``release-20260817.0`` as ``2024-07-29``, or an empty text if there is none."""
    found = _DATE.search(version)
    return "-".join(found.groups()) if found else ""


def installed_runtimes(search_path: str | None = None) -> list[InstalledProgram]:
    """Return the runtimes of sandboxes that are installed: the newest runsc, and the first crun on PATH. Takes some tens of milliseconds."""
    found = []
    for name in ("runsc", "crun"):
        versions = [(line.removeprefix(f"{name} version ").strip(), file) for file, line in find_programs(name, search_path)]
        if versions:
            # max() returns the first of equal candidates.
            version, path = max(versions, key=lambda candidate: date_of_version(candidate[0]))
            found.append(InstalledProgram(name, path, version, date_of_version(version), find_source(path)))
    return found


def find_source(path: Path) -> str:
    """Return the origin of a program, for people. Takes some milliseconds, and some tens of milliseconds for a file that ``scripts/setup`` installed.

    Args:
        path: Absolute path without symbolic links.
    """
    try:
        record = json.loads((path.parent.parent / "share" / "sandlot" / f"{path.name}.json").read_text(encoding="utf-8"))
        if record["sha256"] == content_sha256(path):
            return str(record["source"])
    except (OSError, ValueError, TypeError, KeyError):
        pass  # this file was not installed by scripts/setup, or was replaced
    return _debian_package(path) or f"{path}, of no package"


def _debian_package(path: Path) -> str:
    """Return the Debian package that has the file's name and contains the file, or an empty text."""
    try:
        files = (_PACKAGE_FILES / f"{path.name}.list").read_text(encoding="utf-8").splitlines()
        shown = subprocess.run(
            ["dpkg-query", "--show", "--showformat", "${Version}", path.name], capture_output=True, text=True, timeout=_OUTPUT_TIMEOUT_S, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return f"Debian package {path.name} {shown.stdout}" if str(path) in files and shown.returncode == 0 else ""
