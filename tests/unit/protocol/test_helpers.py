"""The names of helper programs are those of modules of the guest."""

from __future__ import annotations

from importlib import import_module

import pytest

from sandlot.protocol import helpers


@pytest.mark.parametrize("name", [helpers.PACK, helpers.UNPACK, helpers.WATCH, helpers.CHANGES, helpers.OVERLAY, helpers.VOLUMES])
def test_name_is_a_module_of_the_guest_with_a_main_function(name: str) -> None:
    assert callable(import_module(f"sandlot.guest.helpers.{name}").main)
