"""A code context with scripted kernels: queue, interrupts, ends and starts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import context_state as states
from sandlot.guest.kernels.cell import Cell
from sandlot.guest.kernels.context import CELL_START_S, KILL_AFTER_S, SIGNAL_TIMES_S, CodeContext
from sandlot.guest.kernels.starter import MAX_START_S, START_ORDER
from tests.support.guest import ManualLoop, RecordingCall

ARGS: dict[str, Any] = {"kernel": "c", "code": "1", "env": {}, "timeout_s": None, "silent": None, "store_history": None, "stop_on_error": None}
SIGKILL = 9


class ScriptedKernel:
    """A kernel without a process.

    Attributes:
        calls: Names of the methods that were called, in order.
    """

    pid = 100

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.end_reason = ""
        self.startup_text = ""
        self.handler: Any = None
        self.cells: list[Cell] = []

    def serve(self, handler: object) -> None:
        self.handler = handler

    def wake(self, *_arguments: object) -> None:
        self.calls.append("wake")

    def execute(self, cell: Cell) -> None:
        self.cells.append(cell)

    def request_flush(self) -> None:
        self.calls.append("request_flush")

    def interrupt(self, _cell: Cell, *, by_message: bool) -> None:
        self.calls.append("interrupt by message" if by_message else "interrupt")

    def resume_reading(self) -> None:
        pass

    def end(self, reason: str) -> None:
        self.end_reason = self.end_reason or reason

    def discard(self) -> None:
        self.calls.append("discard")

    def say(self, event: str, **fields: Any) -> None:  # noqa: ANN401 - any field
        self.handler.on_message({"event": event, "cell": None, **fields}, 1)


class ScriptedStarter:
    """Starts scripted kernels.

    Attributes:
        attempts: Numbers of the ways that were tried.
        kernels: The kernels that were started.
        is_slow: True if a kernel is created only by ``create``.
        error: Raised instead of a start.
    """

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.kernels: list[ScriptedKernel] = []
        self.is_slow = False
        self.error: RpcError | None = None
        self._pending: Callable[[], object] = lambda: None

    def start(self, _language: str, _env: object, _cwd: str, attempt: int, on_created: Callable[[Any, int], object], _on_refused: object) -> None:
        if self.error is not None:
            raise self.error
        self.attempts.append(attempt)

        def create() -> None:
            self.kernels.append(ScriptedKernel())
            on_created(self.kernels[-1], attempt)

        self._pending = create
        if not self.is_slow:
            create()

    def create(self) -> None:
        self._pending()


class Setting:
    """A context and everything around it."""

    def __init__(self, language: str = "python") -> None:
        self.loop = ManualLoop()
        self.starter = ScriptedStarter()
        self.explains_oom = False
        self.cells: dict[str, Cell] = {}
        self.activity = 0
        identity = SimpleNamespace(env={}, fresh_entropy=lambda: b"entropy")
        oom = SimpleNamespace(explains=lambda _peak_bytes: self.explains_oom)
        store = SimpleNamespace(get=lambda id_, of_context: self.cells.get(id_))  # noqa: ARG005 - all are of this context
        self.context = CodeContext(
            cast("Any", self.loop), cast("Any", identity), cast("Any", self.starter), cast("Any", oom), cast("Any", store),
            "c", language, "/", {}, self._on_activity,
        )  # fmt: skip

    def _on_activity(self) -> None:
        self.activity += 1

    @property
    def kernel(self) -> ScriptedKernel:
        return self.starter.kernels[-1]

    def submit(self, id_: str = "1", **args: Any) -> Cell:  # noqa: ANN401 - any argument of kernel.execute
        cell = self.cells[id_] = Cell(cast("Any", self.loop), id_, {**ARGS, **args})
        self.context.submit(cell)
        return cell

    def running(self, **args: Any) -> Cell:  # noqa: ANN401 - as above
        """Submit a cell that the kernel has started."""
        cell = self.submit(**args)
        self.kernel.say("ready")
        self.kernel.say("started", count=1)
        return cell

    def end_kernel(self) -> None:
        """Let the kernel's process end by itself."""
        self.kernel.handler.on_exit(0, 0)
        self.kernel.handler.on_gone()


def status(cell: Cell) -> str | None:
    return None if cell.result is None else cell.result["status"]


def errors(cell: Cell) -> list[str]:
    return [event["value"] for event in cell.events if event["event"] == "error"]


def test_cells_run_one_after_another() -> None:
    setting = Setting()
    first, second = setting.submit("1"), setting.submit("2")
    assert setting.context.reported_state == "starting"

    setting.kernel.say("ready")
    assert setting.kernel.cells == [first]
    setting.kernel.say("done", ok=True, count=1)
    assert setting.kernel.cells == [first, second]
    setting.kernel.say("done", ok=False, count=2)

    assert (status(first), status(second)) == ("ok", "error")
    assert setting.context.describe()["execution_count"] == 2
    assert setting.context.reported_state == "idle"
    assert setting.activity == 4


def test_timeout_begins_with_the_cell() -> None:
    setting = Setting()
    cell = setting.submit(timeout_s=5.0)
    setting.loop.advance(6.0)
    setting.kernel.say("ready")
    setting.kernel.say("started", count=1)
    setting.loop.advance(4.0)
    assert "interrupt" not in setting.kernel.calls

    setting.loop.advance(1.5)
    setting.kernel.say("done", ok=False, count=1)

    assert "interrupt" in setting.kernel.calls
    assert status(cell) == "timeout"


def test_kernel_that_ignores_interrupts_is_killed() -> None:
    setting = Setting()
    cell = setting.running()

    assert setting.context.interrupt()
    for number, (earlier_s, later_s) in enumerate(pairwise(SIGNAL_TIMES_S), 1):
        assert setting.kernel.calls.count("interrupt") == number
        setting.loop.advance(later_s - earlier_s)
    assert setting.kernel.calls.count("interrupt") == len(SIGNAL_TIMES_S) == 3
    assert setting.kernel.end_reason == ""
    kernel = setting.kernel
    setting.loop.advance(KILL_AFTER_S)
    assert [kernel.end_reason] == ["killed"]
    setting.kernel.handler.on_gone()

    assert status(cell) == "killed"
    assert "did not react to an interrupt" in errors(cell)[0]


def test_interrupt_waits_for_the_start_of_the_cell() -> None:
    setting = Setting()
    setting.submit()
    setting.kernel.say("ready")

    setting.context.interrupt()
    assert "interrupt" not in setting.kernel.calls
    assert "request_flush" in setting.kernel.calls
    setting.kernel.say("started", count=1)

    assert "interrupt" in setting.kernel.calls


def test_interrupt_does_not_wait_long_for_the_start_of_the_cell() -> None:
    setting = Setting()
    setting.submit()
    setting.kernel.say("ready")

    setting.context.interrupt()
    setting.loop.advance(CELL_START_S + 0.1)
    assert setting.kernel.calls.count("interrupt") == 1
    setting.kernel.say("started", count=1)

    assert setting.kernel.calls.count("interrupt") == 2, "the first may have been ignored"


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_kernel_on_node_is_interrupted_by_a_message_as_well(language: str) -> None:
    setting = Setting(language)
    setting.running()

    setting.context.interrupt()

    assert "interrupt by message" in setting.kernel.calls


def test_late_start_of_the_cell_after_its_end_changes_nothing() -> None:
    setting = Setting()
    cell = setting.running()
    setting.kernel.say("done", ok=True, count=1)
    setting.kernel.say("started", cell=cell.id, count=1)

    assert not setting.context.interrupt()
    assert setting.context.state == states.IDLE


@pytest.mark.parametrize("explains_oom, expected", [(False, "died"), (True, "oom")])
def test_death_of_the_kernel_ends_its_cell_and_the_next_cell_has_a_new_one(expected: str, *, explains_oom: bool) -> None:
    setting = Setting()
    setting.explains_oom = explains_oom
    first, second = setting.running(), setting.submit("2")

    setting.kernel.handler.on_exit(SIGKILL, 1)
    setting.kernel.handler.on_gone()

    assert status(first) == expected
    assert len(setting.starter.kernels) == 2
    setting.kernel.say("ready")
    assert setting.kernel.cells == [second]


def test_message_that_arrives_after_the_death_still_counts() -> None:
    setting = Setting()
    cell = setting.running()

    setting.kernel.handler.on_exit(0, 0)
    setting.kernel.say("done", ok=True, count=1)
    setting.kernel.handler.on_gone()

    assert status(cell) == "ok"


def test_failed_cell_aborts_queued_cells_if_it_asks_for_that() -> None:
    setting = Setting()
    setting.running(stop_on_error=True)
    second = setting.submit("2")

    setting.kernel.say("done", ok=False, count=1)

    assert status(second) == "aborted"


def test_kernel_that_ignores_its_timeout_is_killed_and_the_cell_has_timed_out() -> None:
    setting = Setting()
    cell = setting.running(timeout_s=5.0)

    setting.loop.advance(5.5)
    setting.loop.advance(CELL_START_S)
    setting.loop.advance(KILL_AFTER_S)
    assert setting.kernel.end_reason == "killed"
    setting.kernel.handler.on_gone()

    assert status(cell) == "timeout"
    assert "timeout of 5 s" in errors(cell)[0]
    assert "variables are lost" in errors(cell)[0]


def test_restart_aborts_queued_cells_and_the_next_cell_starts_a_kernel() -> None:
    setting = Setting()
    first, second = setting.running(), setting.submit("2")

    setting.context.restart()
    setting.kernel.handler.on_gone()

    assert (status(first), status(second)) == ("killed", "aborted")
    assert "its context was restarted" in errors(first)[0]
    assert len(setting.starter.kernels) == 1
    setting.submit("3")
    assert len(setting.starter.kernels) == 2


def test_kernel_that_arrives_after_the_removal_is_discarded() -> None:
    setting = Setting()
    setting.starter.is_slow = True
    cell = setting.submit()

    setting.context.remove()
    setting.starter.create()

    assert status(cell) == "aborted"
    assert setting.kernel.calls == ["discard"]
    assert setting.context.kernel is None


def test_removal_ends_the_running_cell() -> None:
    setting = Setting()
    cell = setting.running()

    setting.context.remove()
    setting.kernel.handler.on_gone()

    assert status(cell) == "killed"
    assert setting.context.state == states.REMOVED


@pytest.mark.parametrize("language", START_ORDER)
def test_kernel_that_never_starts_is_started_in_each_way_once_and_then_reported(language: str) -> None:
    setting = Setting(language)
    cell = setting.submit()
    ways = len(START_ORDER[language])
    for _ in range(ways - 1):
        setting.end_kernel()
        assert status(cell) is None
    setting.kernel.startup_text = "SyntaxError"

    setting.end_kernel()

    assert setting.starter.attempts == list(range(ways))
    assert status(cell) == "died"
    assert "did not start at all" in errors(cell)[0]
    assert cell.outputs.buffers[2].read(0, 100) == b"SyntaxError"
    setting.submit("2")
    assert setting.starter.attempts[-1] == 0, "the next cell tries the first way again"


def test_plain_kernel_is_used_for_one_kernel_only() -> None:
    setting = Setting("javascript")
    setting.submit()
    setting.end_kernel()
    setting.kernel.say("ready")
    setting.end_kernel()

    setting.submit("2")

    assert setting.starter.attempts == [0, 1, 0]


def test_kernel_that_sends_nothing_in_time_is_killed_and_reported() -> None:
    setting = Setting()
    cell = setting.submit()

    setting.loop.advance(MAX_START_S + 1)
    assert setting.kernel.end_reason == "late"
    setting.kernel.handler.on_gone()

    assert status(cell) == "died"
    assert "did not start in time" in errors(cell)[0]
    assert len(setting.starter.kernels) == 1


def test_language_that_cannot_be_started_fails_the_cell() -> None:
    setting = Setting()
    setting.starter.error = RpcError("unsupported", "There is no python.")

    first, second = setting.submit("1"), setting.submit("2")

    assert (status(first), status(second)) == ("died", "died")
    assert errors(first) == ["There is no python."]
    with pytest.raises(RpcError, match="no python"):
        setting.context.start()
    assert setting.context.reported_state == "stopped"


def test_copy_of_a_sandbox_aborts_queued_cells_and_continues_the_running_cell() -> None:
    setting = Setting()
    first, second = setting.running(), setting.submit("2")

    setting.context.on_copied()
    setting.kernel.say("done", ok=True, count=1)

    assert (status(first), status(second)) == ("ok", "aborted")


def test_interrupted_cell_is_read_even_if_its_client_does_not_read() -> None:
    setting = Setting()
    cell = setting.running()
    cell.follow(cast("Any", RecordingCall(room=0)), 0, 0, 0)
    cell.outputs.buffers[1].append(b"x" * 1_000_000)
    assert not cell.outputs.may_read(1)

    setting.context.interrupt()

    assert cell.outputs.may_read(1)
