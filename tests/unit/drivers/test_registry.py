"""Drivers by name: Sandlot's own ones and those of third parties."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from sandlot.drivers import registry
from sandlot.drivers.registry import DriverSettings, driver_names, open_driver
from sandlot.model.errors import HostError, InvalidRequestError
from sandlot.model.ids import NodeId

SETTINGS = DriverSettings(node=NodeId("abcd"), data_dir=Path("/nowhere"))


def foreign(settings: DriverSettings) -> object:
    """A third party's factory."""
    return ("foreign", settings)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = EntryPoints([EntryPoint(name, f"{__name__}:foreign", registry.ENTRY_POINTS) for name in ("theirs", "gvisor")])
    monkeypatch.setattr(registry, "entry_points", lambda group: theirs.select(group=group))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[foreign.__module__])


def test_opening_an_own_driver_changes_nothing_on_the_host() -> None:
    assert driver_names()[:2] == ("gvisor", "container")
    assert open_driver("gvisor", SETTINGS).name == "gvisor"
    assert not Path("/nowhere").exists()


@pytest.mark.usefixtures("installed")
def test_driver_of_a_third_party_is_found_and_cannot_replace_an_own_one() -> None:
    assert driver_names() == ("gvisor", "container", "theirs")
    theirs: object = open_driver("theirs", SETTINGS)
    assert theirs == ("foreign", SETTINGS)
    assert open_driver("gvisor", SETTINGS).name == "gvisor"


def test_driver_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("no_such_package:open", f"{registry.__name__}:no_such_function"):
        monkeypatch.setattr(registry, "entry_points", lambda group, place=place: EntryPoints([EntryPoint("theirs", place, group)]))
        with pytest.raises(HostError, match=rf"'theirs' \({place}\) cannot be loaded: .*no_such") as refused:
            open_driver("theirs", SETTINGS)
        assert refused.value.fields == {"isolation": "theirs"}


@pytest.mark.parametrize("name", ["", "docker", "GVISOR", "../gvisor"])
def test_unknown_driver_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="gvisor") as refused:
        open_driver(name, SETTINGS)
    assert refused.value.fields == {"isolation": name}
