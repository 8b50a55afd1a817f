"""Those whom an attack must not reach: another sandbox, the service, the host; and how a test waits beside one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from tests.support.localservice import LocalService
from tests.support.traces import NOTHING, settle

T = TypeVar("T")


@contextmanager
def nobody_else_notices(service: LocalService, other: Sandbox) -> Iterator[None]:
    """Whatever is done within: the service, another sandbox and the host are afterwards what they were before.

    Args:
        service: Where it is done.
        other: A sandbox whose kernel knows ``mine`` as 42.
    """
    refs, opened, known = service.refs(), service.descriptors(), len(_defects(service))
    service.client.service.version()  # its connections are there again before several threads use it
    yield
    assert service.is_alive()
    assert other.run_code("mine").text == "42"
    assert other.commands.run("echo alive").stdout == "alive\n"
    settle(lambda: service.traces(keep=refs), NOTHING)
    settle(lambda: service.descriptors() - opened, type(opened)())
    defects = _defects(service)[known:]
    assert not defects, f"a defect was met: {str(defects)[:4000]}"


def _defects(service: LocalService) -> list[dict[str, object]]:
    return [record for record in service.records() if record.get("level") in {"error", "critical"}]


def outcome(work: Callable[[], T]) -> T | SandlotError:
    """What a call gives, or the error that it raises."""
    try:
        return work()
    except SandlotError as error:
        return error


def reason(seen: object) -> str:
    """Why a sandbox has ended, where that is what a call says."""
    return str(seen.fields.get("reason")) if isinstance(seen, SandlotError) and seen.code is ErrorCode.SANDBOX_ENDED else ""


def end_of(sandbox: Sandbox) -> SandlotError:
    """Wait for the end, which comes by itself; the error that calls get afterwards."""
    settle(lambda: sandbox.info().state in {"stopped", "failed"}, expected=True)
    with pytest.raises(SandlotError) as refused:
        sandbox.commands.run("true")
    assert refused.value.code is ErrorCode.SANDBOX_ENDED
    return refused.value


def later(work: Callable[[], T]) -> Future[T]:
    """Do something beside the test."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - told to whoever asks
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
