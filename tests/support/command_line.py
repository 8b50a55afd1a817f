"""The ``gvisor`` driver as with a release of runsc whose control socket was not tested: by command line, with a network that runsc copies."""

from __future__ import annotations

from functools import partial

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.registry import DriverSettings


def open_without_control(name: str, settings: DriverSettings, search_path: str | None = None) -> OciDriver:
    """Create the driver.

    Args:
        name: Name of the driver.
        settings: Settings of the driver.
        search_path: Folders, separated by colons, in which runsc is searched. None: PATH of this process.
    """
    return OciDriver(name, settings, Runsc(partial(find_runsc, search_path, control_releases=())))
