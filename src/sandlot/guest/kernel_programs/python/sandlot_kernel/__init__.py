"""The Python kernel: runs cells on the image's python, 3.8 or newer, and reports what they print, show and raise.

``kernel.py`` beside this folder starts it. Its messages are described in ``docs/design/0011-kernels.md``.

Invariants:
- Only the standard library is required. IPython, numpy, pandas and Matplotlib are used if the image has them.
- Cells may do anything to their process. Modules of the kernel have a copy of the builtins (``kernel.py``), keep what they need from the
  start, and restore before the next cell what cells must not take away: streams, descriptors, signals, modules.
- Nothing is written to a disk.

Cells may import one name: :func:`on_wake`.
"""

from __future__ import annotations

from .wake_callbacks import callbacks

__all__ = ["on_wake"]

on_wake = callbacks.add
