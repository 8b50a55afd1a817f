"""Arguments of xdotool(1) for actions of the pointer and the keys of a desktop. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sandlot.model.errors import InvalidRequestError

Button = Literal["left", "middle", "right"]

_BUTTONS = {"left": "1", "middle": "2", "right": "3"}
_WHEEL_UP, _WHEEL_DOWN = "4", "5"
_CLICK_DELAY_MS = 50
"""Milliseconds between two clicks."""
_WHEEL_DELAY_MS = 20
"""Milliseconds between two steps of the wheel."""
_KEYS = {
    "alt": "Alt_L",
    "arrowdown": "Down",
    "arrowleft": "Left",
    "arrowright": "Right",
    "arrowup": "Up",
    "backspace": "BackSpace",
    "cmd": "Super_L",
    "control": "Control_L",
    "ctrl": "Control_L",
    "delete": "Delete",
    "down": "Down",
    "end": "End",
    "enter": "Return",
    "esc": "Escape",
    "escape": "Escape",
    "home": "Home",
    "insert": "Insert",
    "left": "Left",
    "meta": "Super_L",
    "pagedown": "Page_Down",
    "pageup": "Page_Up",
    "return": "Return",
    "right": "Right",
    "shift": "Shift_L",
    "space": "space",
    "super": "Super_L",
    "tab": "Tab",
    "up": "Up",
}
"""Common names of keys, in lower case -> names of X11 (keysym)."""


def move(x: int, y: int) -> list[str]:
    """Return the arguments that move the pointer.

    There is no ``--sync``, with which xdotool waits 15 s for a pointer that is there already. The display acts on requests in their order anyway.
    """
    return ["mousemove", "--", str(x), str(y)]  # "--": a negative number is not an option


def click(x: int | None, y: int | None, button: Button, count: int) -> list[str]:
    """Return the arguments that click at a position, or where the pointer is if both coordinates are None.

    Raises:
        InvalidRequestError: One coordinate is missing, or the button is not known.
    """
    return [*_move_if_given(x, y), "click", "--repeat", str(count), "--delay", str(_CLICK_DELAY_MS), _button(button)]


def drag(start: tuple[int, int], end: tuple[int, int], button: Button) -> list[str]:
    """Return the arguments that move the pointer from one position to another while a button is held down.

    Raises:
        InvalidRequestError: The button is not known.
    """
    return [*move(*start), "mousedown", _button(button), *move(*end), "mouseup", _button(button)]


def scroll(amount: int, x: int | None, y: int | None) -> list[str]:
    """Return the arguments that turn the wheel down, or up if the amount is negative.

    Raises:
        InvalidRequestError: One coordinate is missing.
    """
    wheel = ["click", "--repeat", str(abs(amount)), "--delay", str(_WHEEL_DELAY_MS), _WHEEL_DOWN if amount > 0 else _WHEEL_UP] if amount else []
    return [*_move_if_given(x, y), *wheel]


def press(keys: Sequence[str]) -> list[str]:
    """Return the arguments that press keys one after the other. Keys that are joined by ``+`` are pressed together.

    Raises:
        InvalidRequestError: A key has no name, or there are no keys.
    """
    if not keys or not all(part for key in keys for part in _parts(key)):
        raise InvalidRequestError(f"{list(keys)!r} are not keys.", hint='Pass names such as "enter", "a" or "ctrl+c".')
    return ["key", *("+".join(_KEYS.get(part.lower(), part) for part in _parts(key)) for key in keys)]


def _parts(key: str) -> list[str]:
    """Return the keys that are pressed together. The key ``+`` itself has the name ``plus``."""
    return ["plus"] if key == "+" else key.split("+")


def _move_if_given(x: int | None, y: int | None) -> list[str]:
    if x is None and y is None:
        return []
    if x is None or y is None:
        raise InvalidRequestError("A position needs both coordinates.", hint="Pass `x` and `y`, or neither.")
    return move(x, y)


def _button(name: str) -> str:
    if name not in _BUTTONS:
        raise InvalidRequestError(f"{name!r} is not a button of the pointer.", hint=f"Use one of: {', '.join(_BUTTONS)}.")
    return _BUTTONS[name]
