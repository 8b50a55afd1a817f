"""The Python kernel: runs cells on the Python of the image, 3.8 or newer, and reports their output, displays and errors.

The program ``kernel.py`` in the parent folder starts the kernel. ``docs/design/0011-kernels.md`` describes the messages to and from the guest.

Invariants:
- Only the standard library is required. IPython, numpy, pandas and Matplotlib are used if the image has them.
- Cells run in the process of the kernel and may change anything in it. The modules of the kernel therefore use a copy of the builtins
  (``kernel.py``), keep references to the functions that they need, and restore streams, descriptors, signal handlers and modules before each
  cell.
- The kernel itself writes nothing to the disk.

Cells may import :func:`on_wake` from this package. All other names are internal.
"""

from __future__ import annotations

from .wake_callbacks import callbacks

__all__ = ["on_wake"]

on_wake = callbacks.add
