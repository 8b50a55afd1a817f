"""Command lines of the pointer and the keys of a desktop."""

from __future__ import annotations

import pytest

from sandlot.model.errors import InvalidRequestError
from sandlot.sdk import xdotool


def test_click_moves_the_pointer_first_if_a_position_is_given() -> None:
    assert xdotool.click(None, None, "left", 1) == ["click", "--repeat", "1", "--delay", "50", "1"]
    assert xdotool.click(0, 7, "right", 2) == ["mousemove", "--", "0", "7", "click", "--repeat", "2", "--delay", "50", "3"]


def test_drag_holds_the_button_while_the_pointer_moves() -> None:
    moves = ["mousemove", "--", "1", "2", "mousedown", "2", "mousemove", "--", "30", "40", "mouseup", "2"]
    assert xdotool.drag((1, 2), (30, 40), "middle") == moves


def test_positive_amount_scrolls_down_and_a_negative_one_up() -> None:
    assert xdotool.scroll(3, None, None)[-5:] == ["--repeat", "3", "--delay", "20", "5"]
    assert xdotool.scroll(-2, 5, 6) == ["mousemove", "--", "5", "6", "click", "--repeat", "2", "--delay", "20", "4"]
    assert xdotool.scroll(0, 5, 6) == xdotool.move(5, 6)


def test_keys_have_their_common_names_in_any_case() -> None:
    assert xdotool.press(["Ctrl+Shift+t", "ENTER", "a", "A", "F5", "Page_Down", "ArrowLeft", "+"]) == [
        "key", "Control_L+Shift_L+t", "Return", "a", "A", "F5", "Page_Down", "Left", "plus",
    ]  # fmt: skip


@pytest.mark.parametrize("keys", [[], [""], ["ctrl+"], ["a", "+b"]])
def test_keys_without_a_name_are_refused(keys: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="are not keys"):
        xdotool.press(keys)


def test_position_with_one_coordinate_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="both coordinates"):
        xdotool.click(1, None, "left", 1)
    with pytest.raises(InvalidRequestError, match="both coordinates"):
        xdotool.scroll(1, None, 2)


def test_unknown_button_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="Use one of: left, middle, right"):
        xdotool.click(None, None, "fourth", 1)  # type: ignore[arg-type]  # as a program without types would
