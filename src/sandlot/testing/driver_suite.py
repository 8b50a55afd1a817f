"""The behaviours of a driver, each a test. A driver that passes them can stand behind Sandlot's seam.

Split by what they are about: ``driver_contract`` (what an in-memory driver does as well), ``driver_life`` (from prepare to the end, and a
host on which nothing is left), ``driver_limits`` (what a sandbox may use),
``driver_configure`` (that changed while it runs), ``driver_restart`` (what a killed service leaves), ``driver_walls`` (what a
sandbox cannot see), ``driver_volumes`` (what outlives it),
``driver_snapshot`` (written down and restored), ``driver_clean`` (by what all of them are measured).
"""

from __future__ import annotations

from sandlot.testing.driver_configure import ConfigureSuite
from sandlot.testing.driver_contract import DriverContractSuite, SnapshotContractSuite
from sandlot.testing.driver_life import LifeSuite
from sandlot.testing.driver_limits import LimitsSuite
from sandlot.testing.driver_restart import RestartSuite
from sandlot.testing.driver_snapshot import SnapshotSuite
from sandlot.testing.driver_volumes import VolumesSuite
from sandlot.testing.driver_walls import WallsSuite

__all__ = ["DriverSuite", "PlainDriverSuite"]


class PlainDriverSuite(DriverContractSuite, LifeSuite, LimitsSuite, ConfigureSuite, RestartSuite, WallsSuite, VolumesSuite):
    """All behaviours of a driver that has no snapshots: it refuses them."""


class DriverSuite(PlainDriverSuite, SnapshotContractSuite, SnapshotSuite):
    """All behaviours. Subclass it, name the class ``Test...`` and give it a ``bench`` fixture."""
