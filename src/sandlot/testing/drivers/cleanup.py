"""Check after each test that the test has left nothing on the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot.testing.drivers.harness import DriverHarness
from sandlot.testing.drivers.leftovers import leftovers, open_descriptors, wait_until_empty


class CleanupSuite:
    """Base class of suites whose tests must leave nothing on the host. Needs a fixture ``harness``."""

    @pytest.fixture(autouse=True)
    def check_leftovers(self, harness: DriverHarness) -> Iterator[None]:
        """Fail the test if sandboxes of the test left something on the host, or if this process has more open descriptors than before."""
        open_before = open_descriptors()
        yield
        assert wait_until_empty(lambda: leftovers(harness.data_dir, harness.node)) == ()
        assert wait_until_empty(lambda: open_descriptors() - open_before) == {}
