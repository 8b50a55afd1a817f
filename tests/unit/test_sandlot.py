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
