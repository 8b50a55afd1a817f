"""The ways to start a kernel, in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels.starter import FULL, MAX_START_S, MIN_START_S, PLAIN, SPARE, START_ORDER, KernelStarter, start_timeout_s


class ScriptedPrefork:
    """A prefork that has a spare kernel, or will have none.

    Attributes:
        is_available: True if a request is accepted.
        on_kernel: Callback of the request.
    """

    def __init__(self) -> None:
        self.is_available = True
        self.on_kernel: Callable[[object], object] = lambda _kernel: None

    def acquire(self, _env: object, on_kernel: Callable[[object], object]) -> bool:
        self.on_kernel = on_kernel
        return self.is_available


class Setting:
    """A starter whose programs are not started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefork = ScriptedPrefork()
        self.error: RpcError | None = None
        self.created: list[tuple[object, str]] = []
        self.refused: list[RpcError] = []
        self._starter = KernelStarter(*(cast("Any", None),) * 4, cast("Any", self.prefork), cast("Any", None))
        monkeypatch.setattr(KernelStarter, "_spawn", self._spawn)

    def _spawn(self, _language: str, _env: object, _cwd: str, *, plain: bool) -> str:
        if self.error is not None:
            raise self.error
        return "plain program" if plain else "program"

    def start(self, language: str = "python", way: str = SPARE) -> None:
        order = START_ORDER[language]

        def on_created(kernel: object, number: int) -> None:
            self.created.append((kernel, order[number]))

        self._starter.start(language, {}, "/", order.index(way), on_created, self.refused.append)


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(monkeypatch)


def test_python_context_gets_the_spare_kernel(setting: Setting) -> None:
    setting.start()
    assert setting.created == []
    setting.prefork.on_kernel("spare")

    assert setting.created == [("spare", SPARE)]


def test_program_is_started_if_there_is_no_spare_kernel(setting: Setting) -> None:
    setting.prefork.is_available = False
    setting.start()

    assert setting.created == [("program", FULL)]


def test_program_is_started_if_the_fork_server_does_not_answer(setting: Setting) -> None:
    setting.start()
    setting.prefork.on_kernel(None)

    assert setting.created == [("program", FULL)]


@pytest.mark.parametrize("language, way, expected", [("python", FULL, "program"), ("python", PLAIN, "plain program"), ("bash", FULL, "program")])
def test_later_way_does_not_use_a_spare_kernel(setting: Setting, language: str, way: str, expected: str) -> None:
    setting.start(language, way)

    assert setting.created == [(expected, way)]


def test_error_of_an_immediate_start_is_raised(setting: Setting) -> None:
    setting.error = RpcError("unsupported", "There is no python.")
    setting.prefork.is_available = False

    with pytest.raises(RpcError):
        setting.start()
    assert setting.refused == []


def test_error_of_a_later_start_is_reported(setting: Setting) -> None:
    setting.error = RpcError("unsupported", "There is no python.")
    setting.start()
    setting.prefork.on_kernel(None)

    assert setting.refused == [setting.error]


@pytest.mark.parametrize("cell_timeout_s, expected", [(None, MAX_START_S), (0.1, MIN_START_S), (20.0, 20.0), (1000.0, MAX_START_S)])
def test_start_timeout_is_that_of_the_waiting_cell_within_bounds(cell_timeout_s: float | None, expected: float) -> None:
    assert start_timeout_s(cell_timeout_s) == expected
