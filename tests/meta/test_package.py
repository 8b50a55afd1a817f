"""The package that is built from the repository is whole: the tests run from the folder, the users have the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tests.meta.tree import PACKAGE


def test_the_wheel_holds_every_file_of_the_package_and_the_command(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(PACKAGE.parents[1])]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("sandlot-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {member for member in archive.namelist() if ".dist-info/" not in member}
        (entry_points,) = (member for member in archive.namelist() if member.endswith(".dist-info/entry_points.txt"))
        assert "sandlot = sandlot.cli.main:main" in archive.read(entry_points).decode()
    written = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert shipped == written
