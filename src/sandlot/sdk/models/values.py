"""Parts that the values of all resources share."""

from __future__ import annotations

from collections.abc import Callable
from reprlib import Repr

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = 80


def short_repr(*names: str) -> Callable[[object], str]:
    """Return a ``__repr__`` that shows the main fields of a value; long text is shortened in the middle."""

    def show(self: object) -> str:
        fields = ", ".join(f"{name}={_REPR.repr(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({fields})"

    return show
