"""What every behaviour is measured by at its end: nothing is left."""

from __future__ import annotations

import pytest

from sandlot.testing.bench import Bench
from sandlot.testing.traces import descriptors, settled, traces


class CleanSuite:
    """See the module."""

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, bench: Bench) -> object:
        """Whatever a behaviour does, nothing of it is left on the host, and no descriptor in this process."""
        open_before = descriptors()
        yield
        assert settled(lambda: traces(bench.data_dir, bench.node)) == ()
        assert settled(lambda: descriptors() - open_before) == {}
