"""What this machine can do for sandboxes and what it cannot, looked at part by part, for ``sandlot doctor``.

Whether a driver works is the driver's own probe (it starts a sandbox); this says *why not* in terms of the machine. What can be tried is tried:
a group is made, entered and frozen, a loop device attached, a namespace entered, a virtual machine run.

Laws:
- A check that could block runs in a process of its own (``children.py``) and has a deadline.
- Nothing is left behind: files have no name, loop devices clear themselves, mounts live in a namespace of the child's own.
- Nobody decides here what is required by whom, but for what no sandbox can do without.
"""
