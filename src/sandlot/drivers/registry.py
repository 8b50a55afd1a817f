"""Names of drivers and their factories.

A factory takes the settings and returns a :class:`~sandlot.model.ports.Driver`. Sandlot's own drivers are listed here and imported when they are
opened. Other drivers are found through the entry point group ``sandlot.drivers``; they must pass the suite of ``sandlot.testing.drivers``
(docs/how-to/write-a-driver.md). The operator chooses which drivers may be used, not this module.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType

from sandlot.model.errors import ErrorCode, HostError, InvalidRequestError
from sandlot.model.ids import IdSource, NodeId
from sandlot.model.ports import Driver

ENTRY_POINTS = "sandlot.drivers"


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Settings of a driver.

    Args:
        node: Id of the node; each state directory has its own. The names of everything that a driver creates on the host contain this id.
        data_dir: Absolute path of the state directory.
        ids: Function that returns random bytes, from which names are made.
        allocates_disks: True: the disk of a sandbox has its space on the host from the beginning. False: it takes space as it is written.
    """

    node: NodeId
    data_dir: Path
    ids: IdSource = secrets.token_bytes
    allocates_disks: bool = False


DriverFactory = Callable[[DriverSettings], Driver]

_OWN: Mapping[str, str] = MappingProxyType({"gvisor": "sandlot.drivers.oci.driver:gvisor", "container": "sandlot.drivers.oci.driver:container"})


def driver_names() -> tuple[str, ...]:
    """Return the names of all installed drivers. Sandlot's own drivers come first."""
    others = sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)} - set(_OWN))
    return (*_OWN, *others)


def open_driver(name: str, settings: DriverSettings) -> Driver:
    """Create a driver. Changes nothing on the host.

    Args:
        name: One of :func:`driver_names`.
        settings: Settings of the driver.

    Raises:
        HostError: The package of the driver cannot be imported.
        InvalidRequestError: No driver has this name.
    """
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        factory: DriverFactory = getattr(importlib.import_module(module), attribute)
        return factory(settings)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == name:
            try:
                found: DriverFactory = entry.load()
            except (ImportError, AttributeError) as error:
                raise HostError(
                    f"The isolation driver {name!r} ({entry.value}) cannot be loaded: {error}.",
                    hint="Repair or uninstall the package of the driver.",
                    fields={"isolation": name},
                ) from error
            return found(settings)
    raise InvalidRequestError(
        f"There is no isolation driver {name!r}.",
        code=ErrorCode.INVALID_REQUEST,
        hint=f"Use one of the installed drivers: {', '.join(driver_names())}.",
        fields={"isolation": name},
    )
