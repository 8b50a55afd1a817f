"""What is said of a kernel that ended in the middle of a cell."""

from __future__ import annotations

import pytest

from sandlot.guest.kernels.cells import epitaph


@pytest.mark.parametrize(
    "status, began, late, expected",
    [
        ("died", True, False, "died"),
        ("killed", True, True, "did not stop when it was interrupted"),
        ("killed", True, False, "started anew"),
        # Somebody started it anew before it had said anything: that says nothing of the program that runs the language.
        ("killed", False, False, "started anew"),
        ("died", False, False, "The image's node did not start at all, so nothing was run"),
        ("died", False, True, "did not start in time"),
        ("oom", True, False, "no memory left"),
        ("oom", True, True, "no memory left"),
    ],
)
def test_it_says_what_happened(status: str, *, began: bool, late: bool, expected: str) -> None:
    assert expected in epitaph(status, "javascript", began=began, late=late)
