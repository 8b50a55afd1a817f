"""Promise: ten sandboxes that write and sync lose nothing when other software fills the disk of the host meanwhile."""

from __future__ import annotations

import pytest

from tests.support.filling import MIB, changed, service_on_small_disk, write_while_full
from tests.support.localservice import TEMPLATE

SANDBOXES = 10
FILES = 200


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_ten_sandboxes_keep_every_confirmed_byte_on_a_full_disk() -> None:
    with service_on_small_disk(4096 * MIB, {"SANDLOT_EXECUTIONS_KEEP": "100"}) as service:
        sandboxes = [service.create(TEMPLATE, memory="256M", disk=f"{FILES + 60}M") for _ in range(SANDBOXES)]
        confirmed = write_while_full(service, sandboxes, FILES)
        assert [len(files) for files in confirmed] == [FILES] * SANDBOXES
        assert [changed(sandbox, files) for sandbox, files in zip(sandboxes, confirmed, strict=True)] == [set()] * SANDBOXES
