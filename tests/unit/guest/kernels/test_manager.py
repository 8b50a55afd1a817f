"""The ``kernel.*`` calls: contexts, cells by the id of their call, and limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import languages
from sandlot.guest.kernels.manager import MAX_CONTEXTS, MAX_QUEUED_BYTES, MAX_QUEUED_CELLS, KernelManager
from sandlot.guest.loop import Loop
from tests.support.guest import RecordingCall

CELL: dict[str, Any] = {
    "kernel": "default",
    "language": None,
    "code": "1",
    "env": {},
    "timeout_s": None,
    "silent": None,
    "store_history": None,
    "stop_on_error": None,
}


class NoKernels:
    """A starter whose kernels never start."""

    def start(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> KernelManager:
    monkeypatch.setattr(languages, "kernel_argv", lambda _language, _env: ["program"])
    identity = SimpleNamespace(env={}, user="user", workspace="/", environment=lambda _account, *_layers: {})
    prefork = SimpleNamespace(is_up=False, on_cells=lambda *, running: None)  # noqa: ARG005 - its signature
    others = (cast("Any", value) for value in (identity, NoKernels(), prefork, SimpleNamespace(), SimpleNamespace()))
    return KernelManager(Loop(), *others)


def call(id_: str = "call", **args: Any) -> Any:  # noqa: ANN401 - a Call
    made = RecordingCall(dict(args))
    made.id = id_
    return made


def contexts(manager: KernelManager) -> list[str]:
    listing = call()
    manager.list_all(listing)
    return [context["kernel"] for context in listing.sent[-1]["kernels"]]


def test_default_context_is_created_at_its_first_use(manager: KernelManager) -> None:
    assert contexts(manager) == []
    manager.execute(call(**CELL))

    assert contexts(manager) == ["default"]


def test_context_that_was_not_created_is_refused(manager: KernelManager) -> None:
    with pytest.raises(RpcError, match="does not exist"):
        manager.execute(call(**{**CELL, "kernel": "other"}))


def test_context_has_one_language(manager: KernelManager) -> None:
    manager.create(call(kernel="mine", language="bash", cwd=None, env={}))

    with pytest.raises(RpcError, match="runs bash only"):
        manager.create(call(kernel="mine", language="python", cwd=None, env={}))
    with pytest.raises(RpcError, match="runs bash only"):
        manager.execute(call(**{**CELL, "kernel": "mine", "language": "python"}))


def test_number_of_contexts_is_limited(manager: KernelManager) -> None:
    for number in range(MAX_CONTEXTS):
        manager.create(call(kernel=f"c{number}", language="bash", cwd=None, env={}))

    with pytest.raises(RpcError) as caught:
        manager.create(call(kernel="one-more", language="bash", cwd=None, env={}))
    assert caught.value.code == "limit_exceeded"
    manager.execute(call(**CELL))


def test_repeated_call_follows_the_same_cell(manager: KernelManager) -> None:
    manager.execute(call("one", **CELL))
    manager.execute(call("one", **CELL))
    manager.execute(call("two", **CELL))

    assert len(manager._contexts["default"].queue) == 2  # noqa: SLF001 - nothing public tells


def test_number_of_queued_cells_is_limited(manager: KernelManager) -> None:
    for number in range(MAX_QUEUED_CELLS):
        manager.execute(call(f"{number}", **CELL))

    with pytest.raises(RpcError) as caught:
        manager.execute(call("one-more", **CELL))
    assert caught.value.code == "busy"


def test_size_of_queued_code_is_limited_over_all_contexts(manager: KernelManager) -> None:
    manager.create(call(kernel="mine", language="bash", cwd=None, env={}))
    manager.execute(call("large", **{**CELL, "code": "x" * MAX_QUEUED_BYTES}))

    with pytest.raises(RpcError) as caught:
        manager.execute(call("small", **{**CELL, "kernel": "mine"}))
    assert caught.value.code == "busy"


def test_interrupted_cell_in_the_queue_is_aborted(manager: KernelManager) -> None:
    waiting = call("waiting", **CELL)
    manager.execute(waiting)
    interrupt = call(execution="waiting", kernel=None)
    manager.interrupt(interrupt)

    assert interrupt.sent == [{"running": True}]
    assert waiting.sent[-1]["status"] == "aborted"
