"""One service for each file of promises, and one sandbox to try from.

A test that harms its sandbox makes one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.localservice import LocalService, local_service


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service() as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made
