"""Complete suites for a driver: one test for each behaviour that Sandlot needs.

Each part is in its own module and can be used alone:

- ``contract``: behaviours that need no real kernel. The in-memory driver passes these tests too.
- ``lifecycle``: all steps from the preparation to the end of a sandbox, and its complete removal from the host.
- ``limits``: limits of memory, disk, processes and processor time, and the reported usage.
- ``configure``: changes of these limits while a sandbox runs.
- ``restart``: sandboxes and remains that a killed service leaves behind.
- ``isolation``: files, processes, environment and network of the host that a sandbox must not see.
- ``volumes``: volumes that are mounted into sandboxes.
- ``network``: the network card, whose connections lead to the guest.
- ``snapshots``: snapshots and sandboxes that are restored from them.

``cleanup`` checks after each test that nothing is left on the host.
"""

from __future__ import annotations

from sandlot.testing.drivers.configure import ConfigureSuite
from sandlot.testing.drivers.contract import DriverContractSuite, SnapshotContractSuite
from sandlot.testing.drivers.isolation import IsolationSuite
from sandlot.testing.drivers.lifecycle import LifecycleSuite
from sandlot.testing.drivers.limits import LimitsSuite
from sandlot.testing.drivers.network import NetworkSnapshotSuite, NetworkSuite
from sandlot.testing.drivers.restart import RestartSuite
from sandlot.testing.drivers.snapshots import SnapshotSuite
from sandlot.testing.drivers.volumes import VolumesSuite

__all__ = ["DriverSuite", "DriverSuiteWithoutSnapshots"]


class DriverSuiteWithoutSnapshots(
    DriverContractSuite, LifecycleSuite, LimitsSuite, ConfigureSuite, RestartSuite, IsolationSuite, VolumesSuite, NetworkSuite
):
    """All tests for a driver whose probe reports that snapshots are not supported."""


class DriverSuite(DriverSuiteWithoutSnapshots, SnapshotContractSuite, SnapshotSuite, NetworkSnapshotSuite):
    """All tests for a driver. Name the subclass ``Test...``, and define a fixture ``harness`` that returns a ``DriverHarness``."""
