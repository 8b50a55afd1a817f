"""The isolation of tests whose behaviour does not depend on it."""

from __future__ import annotations

import pytest

CONTAINERS_FIRST = ("container", pytest.param("gvisor", marks=pytest.mark.soak))
"""Parameters of a fixture: containers, which start faster, in every run, and gVisor in ``scripts/soak``.

For behaviour of the guest and of the compatibility APIs. Snapshots, hibernation and forks need gVisor.
"""
