"""Names of sandboxes against a real service: racing callers, restarts of the service, and names in place of ids."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from sandlot import ConflictError, Sandbox
from tests.support.localservice import TEMPLATE, LocalService

CALLERS = 100


def test_one_of_a_hundred_racing_callers_creates_the_sandbox(service: LocalService) -> None:
    def get_or_create(_: int) -> Sandbox:
        return Sandbox.get_or_create("worker", TEMPLATE, client=service.client)

    with ThreadPoolExecutor(CALLERS) as callers:
        sandboxes = list(callers.map(get_or_create, range(CALLERS)))
    assert {sandbox.id for sandbox in sandboxes} == {sandboxes[0].id}
    assert [sandbox.was_created for sandbox in sandboxes].count(True) == 1
    assert len(service.refs()) == 1
    assert sandboxes[0].commands.run("echo up").stdout == "up\n"

    with pytest.raises(ConflictError) as taken:
        service.create(name="worker")
    assert taken.value.fields["sandbox"] == sandboxes[0].id
    sandboxes[0].hibernate()
    with ThreadPoolExecutor(CALLERS) as callers:
        again = list(callers.map(get_or_create, range(CALLERS)))
    assert {(sandbox.id, sandbox.was_created) for sandbox in again} == {(sandboxes[0].id, False)}
    assert sandboxes[0].info().state == "running"
    sandboxes[0].kill()
    with service.create(name="worker") as sandbox:
        assert sandbox.id != sandboxes[0].id
