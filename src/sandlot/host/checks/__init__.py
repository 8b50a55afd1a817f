"""Checks of this machine for ``sandlot doctor``, part by part.

A driver's own probe finds out whether the driver works, by starting a sandbox. These checks find the property of the machine that makes it fail. They
try what can be tried: a control group is created, entered and frozen, a loop device is attached, a namespace is entered.

Invariants:
- A check that could block runs in its own process (``runner.py``) and has a deadline.
- Nothing is left behind: files have no names, loop devices free themselves, mounts belong to a namespace of the check's process.
- A check does not decide which driver requires its result; it only marks results that every sandbox needs.
"""
