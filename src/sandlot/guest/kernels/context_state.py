"""The states of a code context, and what happens in each of them, as one table.

:func:`step` is pure: it returns the next state and the actions that :class:`~sandlot.guest.kernels.context.CodeContext` performs.
States, events and actions are plain strings, because ``enum`` is too slow to import in the guest.

Invariants:
- A cell that was sent to a kernel ends in exactly one ``FINISH_CELL`` or ``FAIL_CELL``.
- A context in an ending state sends no cell and no signal. The ending state lasts until everything that the kernel wrote was read.
- A pair of state and event that the table does not list changes nothing.
"""

from __future__ import annotations

# -- states ------------------------------------------------------------------------------------------------------------

STOPPED = "stopped"
"""No kernel. The next cell starts one."""
REQUESTED = "requested"
"""A kernel is being obtained; there is no process yet."""
STARTING = "starting"
"""The kernel's process runs and has not sent its first message."""
IDLE = "idle"
"""The kernel waits for a cell."""
SENT = "sent"
"""A cell was sent to the kernel, which has not reported its start. Before that, a signal may be ignored."""
RUNNING = "running"
"""The kernel has reported the start of the cell."""
INTERRUPTING_SENT = "interrupting a sent cell"
"""A cell of which the kernel has not reported the start is being interrupted."""
INTERRUPTING = "interrupting"
"""A running cell is being interrupted."""
ENDING_START = "ending before its first message"
"""The kernel's process ends; it has sent no message."""
ENDING_IDLE = "ending without a cell"
"""The kernel's process ends; no cell runs."""
ENDING_CELL = "ending with a cell"
"""The kernel's process ends; a cell runs."""
ENDING_REMOVED = "ending after removal"
"""The context was removed while it had a kernel, whose process ends."""
REMOVED = "removed"
"""The context was removed; nothing starts a kernel again."""

# -- events ------------------------------------------------------------------------------------------------------------

KERNEL_NEEDED = "kernel needed"
"""A kernel is wanted now, with or without a cell."""
CELL_QUEUED = "cell queued"
"""The queue has a cell."""
KERNEL_CREATED = "kernel created"
"""The process of the requested kernel runs."""
START_REFUSED = "start refused"
"""The requested kernel cannot be started."""
KERNEL_READY = "kernel ready"
"""The kernel has sent a message, of any kind."""
CELL_STARTED = "cell started"
"""The kernel has reported the start of the cell."""
CELL_DONE = "cell done"
"""The kernel has reported the end of the cell."""
INTERRUPT = "interrupt"
"""A client wants the cell to end, or the cell's timeout has passed."""
KERNEL_ENDING = "kernel ending"
"""The kernel is to be killed, or its process has ended by itself."""
KERNEL_GONE = "kernel gone"
"""The kernel's process has ended and everything that it wrote was read."""
REMOVE = "remove"
"""The context is not used any more."""

# -- actions -----------------------------------------------------------------------------------------------------------

START_KERNEL = "start kernel"
SERVE_KERNEL = "serve kernel"
"""Send the kernel its environment, read its messages, and kill it if the first one is late."""
DISCARD_KERNEL = "discard kernel"
"""End a kernel that nothing waits for any more."""
SETTLE_START = "settle start"
"""The kernel has started: cancel the deadline of its start; the next kernel is started in the first way again."""
SEND_CELL = "send cell"
DEFER_SIGNAL = "defer signal"
"""Ask the kernel for its messages, and signal it if the start of the cell does not come soon."""
SIGNAL = "signal"
"""Send SIGINT, again after a while, and kill a kernel that does not react."""
FINISH_CELL = "finish cell"
"""End the cell with the kernel's result."""
FAIL_CELL = "fail cell"
"""End the running cell, if there is one, because its kernel is gone."""
END_KERNEL = "end kernel"
"""Kill everything that belongs to the kernel, and read what it has written before its end."""
RETRY_START = "retry start"
"""Use the next way to start a kernel, or fail the first queued cell."""
RELEASE_KERNEL = "release kernel"
"""Forget the kernel and cancel its timers."""

TRANSITIONS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    STOPPED: {
        KERNEL_NEEDED: (REQUESTED, (START_KERNEL,)),
        CELL_QUEUED: (REQUESTED, (START_KERNEL,)),
        REMOVE: (REMOVED, ()),
    },
    REQUESTED: {
        KERNEL_CREATED: (STARTING, (SERVE_KERNEL,)),
        START_REFUSED: (STOPPED, ()),
        REMOVE: (REMOVED, ()),
    },
    STARTING: {
        KERNEL_READY: (IDLE, (SETTLE_START,)),
        KERNEL_ENDING: (ENDING_START, (END_KERNEL,)),
        REMOVE: (ENDING_REMOVED, (END_KERNEL,)),
    },
    IDLE: {
        CELL_QUEUED: (SENT, (SEND_CELL,)),
        KERNEL_ENDING: (ENDING_IDLE, (END_KERNEL,)),
        REMOVE: (ENDING_REMOVED, (END_KERNEL,)),
    },
    SENT: {
        CELL_STARTED: (RUNNING, ()),
        CELL_DONE: (IDLE, (FINISH_CELL,)),
        INTERRUPT: (INTERRUPTING_SENT, (DEFER_SIGNAL,)),
        KERNEL_ENDING: (ENDING_CELL, (END_KERNEL,)),
        REMOVE: (ENDING_REMOVED, (END_KERNEL,)),
    },
    RUNNING: {
        CELL_DONE: (IDLE, (FINISH_CELL,)),
        INTERRUPT: (INTERRUPTING, (SIGNAL,)),
        KERNEL_ENDING: (ENDING_CELL, (END_KERNEL,)),
        REMOVE: (ENDING_REMOVED, (END_KERNEL,)),
    },
    INTERRUPTING_SENT: {
        CELL_STARTED: (INTERRUPTING, (SIGNAL,)),
        CELL_DONE: (IDLE, (FINISH_CELL,)),
        KERNEL_ENDING: (ENDING_CELL, (END_KERNEL,)),
        REMOVE: (ENDING_REMOVED, (END_KERNEL,)),
    },
    INTERRUPTING: {
        CELL_DONE: (IDLE, (FINISH_CELL,)),
        KERNEL_ENDING: (ENDING_CELL, (END_KERNEL,)),
        REMOVE: (ENDING_REMOVED, (END_KERNEL,)),
    },
    ENDING_START: {
        # Its first message was among what was still to be read: it had started.
        KERNEL_READY: (ENDING_IDLE, (SETTLE_START,)),
        KERNEL_GONE: (STOPPED, (RETRY_START, RELEASE_KERNEL)),
        REMOVE: (ENDING_REMOVED, ()),
    },
    ENDING_IDLE: {
        KERNEL_GONE: (STOPPED, (RELEASE_KERNEL,)),
        REMOVE: (ENDING_REMOVED, ()),
    },
    ENDING_CELL: {
        CELL_DONE: (ENDING_IDLE, (FINISH_CELL,)),
        KERNEL_GONE: (STOPPED, (FAIL_CELL, RELEASE_KERNEL)),
        REMOVE: (ENDING_REMOVED, ()),
    },
    ENDING_REMOVED: {
        CELL_DONE: (ENDING_REMOVED, (FINISH_CELL,)),
        KERNEL_GONE: (REMOVED, (FAIL_CELL, RELEASE_KERNEL)),
    },
    REMOVED: {
        KERNEL_CREATED: (REMOVED, (DISCARD_KERNEL,)),
    },
}
"""State -> event -> next state and actions, in the order in which they are performed."""

REPORTED = {
    STOPPED: "stopped",
    REQUESTED: "starting",
    STARTING: "starting",
    IDLE: "idle",
    SENT: "busy",
    RUNNING: "busy",
    INTERRUPTING_SENT: "busy",
    INTERRUPTING: "busy",
    ENDING_START: "starting",
    ENDING_IDLE: "idle",
    ENDING_CELL: "busy",
    ENDING_REMOVED: "stopped",
    REMOVED: "stopped",
}
"""State -> the word of ``schema.KERNEL_STATES`` that clients see."""


def step(state: str, event: str) -> tuple[str, tuple[str, ...]]:
    """Return the next state and the actions to perform, in order. A pair that the table does not list changes nothing."""
    return TRANSITIONS[state].get(event, (state, ()))


def has_interruptible_cell(state: str) -> bool:
    """Return whether a cell runs and its kernel is not ending."""
    return state in {SENT, RUNNING, INTERRUPTING_SENT, INTERRUPTING}
