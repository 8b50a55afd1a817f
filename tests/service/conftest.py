"""One real service for each file of tests, and one sandbox of it."""

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
