"""The python kernel: runs cells on the image's python, 3.8 or newer, and tells what they print, show and raise.

``kernel.py`` beside this folder starts it. What it says and hears is in ``docs/design/0010-kernels.md``.

Laws:
- Standard library only, but for IPython where the image has it; numpy, pandas and Matplotlib are used, never required.
- Cells may do anything to their process. Modules here resolve builtins in a copy of their own (``kernel.py``), hold what they need
  from the start, and put back before the next cell what a cell must not take away: streams, descriptors, signals, modules.
- Nothing is written to any disk.
"""
