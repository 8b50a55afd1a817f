"""Checks of this machine for ``sandlot doctor``.

A driver's own probe starts a sandbox to find out whether the driver works. If the probe fails, these checks find the cause in the machine. Where
possible, a check tries the real operation: it creates, enters and freezes a control group, attaches a loop device, or enters a namespace.

Invariants:
- A check that could block runs in its own process (``runner.py``) and has a deadline.
- Nothing remains after a check: its files have no names, the kernel frees its loop devices, and its mounts belong to a namespace of its process.
- A check does not know which drivers need its result. It only marks results that every sandbox needs.
"""
