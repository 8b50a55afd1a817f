"""The package itself: its public names, each imported only when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sandlot


@pytest.mark.parametrize("name", sandlot.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sandlot, name) is not None
    assert name in dir(sandlot)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = sandlot.Nonsense  # type: ignore[attr-defined]


def test_importing_the_package_imports_no_other_part_of_it() -> None:
    listing = "import sys; import sandlot; print([name for name in sys.modules if name.startswith('sandlot')])"
    told = subprocess.run([sys.executable, "-c", listing], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "['sandlot']"


def test_sdk_and_command_line_are_imported_without_modules_that_windows_lacks() -> None:
    # The hook stands for Windows, on which no test runs.
    program = """
import pkgutil, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "grp", "pwd", "resource", "termios", "tty"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Missing())
import sandlot.sdk
for module in pkgutil.walk_packages(sandlot.sdk.__path__, "sandlot.sdk."):
    __import__(module.name)
with sandlot.Client("http://127.0.0.1:9", "key") as client:
    try:
        client.service.version()
    except sandlot.UnavailableError:
        pass
from sandlot.cli.main import dispatch
sys.exit(dispatch(["--help"]))
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
