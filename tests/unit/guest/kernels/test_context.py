"""What a context says to its kernel when a life begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandlot.guest.flow.loop import Loop
from sandlot.guest.kernels.context import Context


class Kernel:
    """One that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.pid = 1 << 22

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def serve(self, _owner: object) -> None:
        pass


def test_a_folder_is_told_to_a_new_kernel_and_to_none_that_has_lived() -> None:
    guest = SimpleNamespace(loop=Loop(), env={"LIFE": "1"}, entropy=b"1")
    kernel = Kernel()
    context = Context(guest, SimpleNamespace(), "default", "python", "/workspace", {"OWN": "1"})  # type: ignore[arg-type]
    context.woken()
    context.adopt(kernel)  # type: ignore[arg-type]
    guest.env, guest.entropy = {"LIFE": "2"}, b"2"
    context.woken()
    assert [(each["cwd"], each["env"], each["entropy"]) for each in kernel.told] == [
        ("/workspace", {"LIFE": "1", "OWN": "1"}, b"1"),
        ("", {"LIFE": "2", "OWN": "1"}, b"2"),
    ]
