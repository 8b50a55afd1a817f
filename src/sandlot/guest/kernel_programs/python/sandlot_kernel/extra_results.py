"""Further results for clients that expect them, as those of E2B do. The variable ``SANDLOT_EXTRA_RESULTS=1`` selects them for a cell.

- A dict or a list is also JSON, if JSON can represent it.
- A pandas DataFrame is also a table: name of a column -> values.
- An image of Pillow that a cell saves under a path is displayed.

Invariants:
- Without the variable, no library is changed, and no representation is added.
- JSON and tables have at most ``MAX_VALUES`` values. Larger objects have no such representation, because a part of them would be misleading.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import os
import sys

from .import_hooks import after_import

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "SANDLOT_EXTRA_RESULTS"
TABLE = "application/vnd.sandlot.table.v1+json"
MAX_VALUES = 100000
MAX_DEPTH = 100

_is_prepared = False


def prepare() -> bool:
    """Return True if the running cell has selected further results. The first time, change Pillow so that saved images are displayed."""
    global _is_prepared  # noqa: PLW0603 - the state of a library that is changed once
    if os.environ.get(VARIABLE) != "1":
        return False
    if not _is_prepared:
        _is_prepared = True
        after_import("PIL.Image", _display_saved_images)
    return True


def json_of(value: object) -> str | None:
    """Return a dict or a list as JSON; None for any other object, and if JSON cannot represent the object."""
    if not isinstance(value, (dict, list)) or not prepare():
        return None
    try:
        return json.dumps(_plain(value, _Budget(), MAX_DEPTH), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def table_of(value: Any) -> str | None:
    """Return a pandas DataFrame as the JSON of a table; None for any other object."""
    frame_type = getattr(sys.modules.get("pandas"), "DataFrame", None)
    if frame_type is None or not isinstance(value, frame_type) or not prepare() or value.size > MAX_VALUES:
        return None
    budget = _Budget()
    columns = {str(name): [_plain(item, budget, MAX_DEPTH, other=str) for item in values] for name, values in value.to_dict(orient="list").items()}
    return json.dumps(columns, allow_nan=False)


class _Budget:
    """Number of values that may still be converted."""

    def __init__(self) -> None:
        self.values = MAX_VALUES


def _plain(value: Any, budget: _Budget, depth: int, other: Any = None) -> Any:
    """Return a value as JSON's types. Dates become text of ISO 8601; numbers that are not finite become None.

    Args:
        value: The value.
        budget: Values that may still be converted.
        depth: Maximum number of nested dicts and lists.
        other: Function that converts objects of other types; None to raise an exception.

    Raises:
        TypeError: JSON cannot represent the value.
        ValueError: The value is too large, or contains itself.
    """
    budget.values -= 1
    if budget.values < 0 or depth < 0:
        raise ValueError("too large")
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {_key(key): _plain(item, budget, depth - 1, other) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, budget, depth - 1, other) for item in value]
    return _plain_object(value, budget, depth, other)


def _plain_object(value: Any, budget: _Budget, depth: int, other: Any) -> Any:
    if isinstance(value, (dt.date, dt.time)):
        return None if value != value else value.isoformat()  # noqa: PLR0124 - the NaT of pandas is a datetime
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
        return _plain(value.tolist(), budget, depth - 1, other)
    if other is None:
        raise TypeError(type(value).__name__)
    return other(value)


def _key(key: object) -> str:
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    if isinstance(key, (str, int, float)):
        return str(key)
    if isinstance(key, (dt.date, dt.time)):
        return key.isoformat()
    raise TypeError(type(key).__name__)


def _display_saved_images(module: Any) -> None:
    from IPython.display import display  # noqa: PLC0415 - the plain shell has no IPython

    save = module.Image.save

    @functools.wraps(save)
    def save_and_display(image: Any, fp: Any, *how: Any, **options: Any) -> Any:
        saved = save(image, fp, *how, **options)
        caller = str(sys._getframe(1).f_globals.get("__name__"))  # noqa: SLF001
        if isinstance(fp, (str, os.PathLike)) and not caller.startswith("matplotlib.") and prepare():  # a figure is displayed by its own backend
            display(image)
        return saved

    module.Image.save = save_and_display
