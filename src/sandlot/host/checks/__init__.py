"""Checks of this machine for ``sandlot doctor``, part by part.

A driver's own probe finds out whether the driver works, by starting a sandbox. If the probe fails, these checks find the property of the machine that
is the cause. Where possible, a check tries the real operation: it creates, enters and freezes a control group, attaches a loop device, or enters a
namespace.

Invariants:
- A check that could block runs in its own process (``runner.py``) and has a deadline.
- Nothing is left behind: files have no names, loop devices free themselves, mounts belong to a namespace of the check's process.
- A check does not decide which driver requires its result; it only marks results that every sandbox needs.
"""
