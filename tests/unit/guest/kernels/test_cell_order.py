"""Order of output and events for followers that read slowly or attach again."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.guest.kernels import cell as cell_module
from sandlot.guest.kernels.cell import Cell
from sandlot.guest.loop import Loop

ARGS: dict[str, Any] = {"kernel": "default", "code": "", "env": {}, "timeout_s": None, "silent": None, "store_history": None, "stop_on_error": None}


class BoundedCall:
    """A call whose stream accepts a limited number of bytes and events."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.left = room
        self.sent: list[Any] = []
        self.status: str | None = None
        self.on_writable: Any = None
        self.on_gone: Any = None

    def room(self) -> int:
        return self.left

    def data(self, channel: int, piece: bytes) -> None:
        self.left -= len(piece)
        if self.sent and self.sent[-1][0] == channel:
            self.sent[-1] = (channel, self.sent[-1][1] + piece.decode())
        else:
            self.sent.append((channel, piece.decode()))

    def lost(self, channel: int, size: int) -> None:
        self.sent.append((channel, size))

    def event(self, event: str, /, **fields: Any) -> None:  # noqa: ANN401 - whatever it has
        self.left -= 1
        self.sent.append((event, fields.get("count")))

    def result(self, **fields: Any) -> None:  # noqa: ANN401 - the same
        self.status = fields["status"]


def made() -> Cell:
    return Cell(Loop(), "c", ARGS)


def write(cell: Cell, channel: int, text: str) -> None:
    cell.outputs.buffers[channel].append(text.encode())
    cell.pump()


def written() -> Cell:
    cell = made()
    cell.add_event({"event": "started", "count": 0}, 1)
    for number in range(3):
        write(cell, 1, f"out{number} ")
        write(cell, 2, f"err{number} ")
        write(cell, 1, f"more{number} ")
        cell.add_event({"event": "display", "count": number}, 1)
    return cell


EVERYTHING = [("started", 0)] + [each for n in range(3) for each in ((1, f"out{n} "), (2, f"err{n} "), (1, f"more{n} "), ("display", n))]


def follow(cell: Cell, call: BoundedCall, events: int = 0, out: int = 0, err: int = 0, *, wait: bool = True) -> None:
    cell.follow(call, events, out, err, wait=wait)  # type: ignore[arg-type]


@pytest.mark.parametrize("room", range(1, 8))
def test_slow_follower_receives_the_same_in_the_same_order(room: int) -> None:
    cell, call = written(), BoundedCall(0)
    follow(cell, call)
    cell.finish("ok", 1)
    while call.status is None:
        call.left = room
        call.on_writable()
    assert "".join(str(each[1]) for each in call.sent) == "".join(str(each[1]) for each in EVERYTHING)


def test_changes_beyond_the_limit_lose_their_order_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cell_module, "MAX_RUNS", 4)
    cell, call = written(), BoundedCall()
    follow(cell, call)
    said = {kind: "".join(str(text) for each, text in call.sent if each == kind) for kind in (1, 2, "display", "started")}
    assert said == {1: "out0 more0 out1 more1 out2 more2 ", 2: "err0 err1 err2 ", "display": "012", "started": "0"}
    assert call.sent.index((1, "more2 ")) < call.sent.index(("display", 2))


def test_late_output_of_an_ended_cell_is_read() -> None:
    cell, call = made(), BoundedCall(0)
    follow(cell, call)
    write(cell, 1, "x" * 1_000_000)
    assert not cell.outputs.may_read(1)
    assert cell.outputs.may_read(2)
    cell.finish("ok", 1)
    assert cell.outputs.may_read(1)


@pytest.mark.parametrize("ends", [False, True])
def test_follower_that_does_not_wait_ends_after_the_present_output(ends: bool) -> None:  # noqa: FBT001 - a parameter of the test
    cell, call = written(), BoundedCall(0)
    follow(cell, call, wait=False)
    for _ in range(50):
        if call.status is not None:
            break
        call.left = 10
        write(cell, 1, "faster than its reader ")
        cell.add_event({"event": "display", "count": 99}, 1)
        if ends and cell.result is None:
            cell.finish("ok", 1)
        cell.pump()
    assert (call.status, cell.followers) == ("running", []), "it has not received the end"
    assert len("".join(str(text) for _, text in call.sent)) < 2 * len("".join(str(text) for _, text in EVERYTHING))
    again = BoundedCall()
    follow(cell, again, wait=False)
    assert again.status == ("ok" if ends else "running")
