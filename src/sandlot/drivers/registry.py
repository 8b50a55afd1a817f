"""Which drivers there are, by name.

A driver is a factory: settings in, :class:`~sandlot.model.ports.Driver` out. Sandlot's own are named here and imported
when asked for; others are found by the entry point group ``sandlot.drivers`` and must pass ``sandlot.testing``'s suite.
Which of them may be used is the operator's choice and not made here.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from sandlot.model.errors import ErrorCode, InvalidRequestError
from sandlot.model.ids import IdSource, NodeId
from sandlot.model.ports import Driver

ENTRY_POINTS = "sandlot.drivers"


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """What every driver is given.

    Args:
        node: The id of this state directory; everything that a driver makes on the host carries it.
        data_dir: The state directory, absolute.
        ids: Randomness for names.
    """

    node: NodeId
    data_dir: Path
    ids: IdSource = secrets.token_bytes


DriverFactory = Callable[[DriverSettings], Driver]

_OWN: Mapping[str, str] = MappingProxyType({"gvisor": "sandlot.drivers.oci.driver:gvisor", "container": "sandlot.drivers.oci.driver:container"})


def driver_names() -> tuple[str, ...]:
    """The names of all drivers that are installed, Sandlot's own first."""
    others = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)} - set(_OWN))
    return (*_OWN, *others)


def open_driver(name: str, settings: DriverSettings) -> Driver:
    """Make a driver. Touches nothing on the host yet.

    Args:
        name: One of :func:`driver_names`.
        settings: What every driver is given.

    Raises:
        InvalidRequestError: There is none of that name.
    """
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        factory: DriverFactory = getattr(importlib.import_module(module), attribute)
        return factory(settings)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            found: DriverFactory = entry.load()
            return found(settings)
    raise InvalidRequestError(
        f"There is no isolation driver {name!r}.",
        code=ErrorCode.INVALID_REQUEST,
        hint=f"Installed are: {', '.join(driver_names())}.",
        fields={"isolation": name},
    )
