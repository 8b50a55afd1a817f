"""The Python kernel: runs cells on the Python of the image, 3.8 or newer, and reports their output, displays and errors.

``kernel.py`` beside this folder starts it. ``docs/design/0011-kernels.md`` describes its messages.

Invariants:
- Only the standard library is required. IPython, numpy, pandas and Matplotlib are used if the image has them.
- Cells may change anything in their process. So modules of the kernel have a copy of the builtins (``kernel.py``), keep references to what
  they need, and restore streams, descriptors, signal handlers and modules before the next cell.
- Nothing is written to the disk.

The public name for cells is :func:`on_wake`.
"""

from __future__ import annotations

from .wake_callbacks import callbacks

__all__ = ["on_wake"]

on_wake = callbacks.add
