"""The states of a code context, and one table of all transitions between them.

:func:`step` is pure: it returns the next state and the actions that :class:`~sandlot.guest.kernels.context.CodeContext` performs.
States, events and actions are plain strings, because ``enum`` is too slow to import in the guest.

Invariants:
- A cell that was sent to a kernel ends in exactly one ``FINISH_CELL`` or ``FAIL_CELL``.
- A context in an ending state sends neither cells nor signals. An ending state lasts until all output of the kernel was read.
- If the table has no entry for a state and an event, the event has no effect.
"""

from __future__ import annotations

# -- states ------------------------------------------------------------------------------------------------------------

STOPPED = "stopped"
"""No kernel. The next cell starts one."""
REQUESTED = "requested"
"""A kernel was requested, and its process does not exist yet."""
STARTING = "starting"
"""The process of the kernel runs, and has not sent its first message."""
IDLE = "idle"
"""The kernel waits for a cell."""
SENT = "sent"
"""A cell was sent to the kernel, which has not reported the start of the cell. Until then, the kernel may ignore a signal."""
RUNNING = "running"
"""The kernel has reported the start of the cell."""
INTERRUPTING_SENT = "interrupting a sent cell"
"""A cell is being interrupted, and the kernel has not reported its start."""
INTERRUPTING = "interrupting"
"""A running cell is being interrupted."""
ENDING_START = "ending before its first message"
"""The process of the kernel is ending without having sent a message."""
ENDING_IDLE = "ending without a cell"
"""The process of the kernel is ending, and no cell runs."""
ENDING_CELL = "ending with a cell"
"""The process of the kernel is ending while a cell runs."""
ENDING_REMOVED = "ending after removal"
"""The context was removed, and the process of its kernel is ending."""
REMOVED = "removed"
"""The context was removed. No kernel is started again."""

# -- events ------------------------------------------------------------------------------------------------------------

KERNEL_NEEDED = "kernel needed"
"""A kernel is to be started, even without a cell."""
CELL_QUEUED = "cell queued"
"""A cell is in the queue."""
KERNEL_CREATED = "kernel created"
"""The process of the requested kernel exists."""
START_REFUSED = "start refused"
"""The requested kernel cannot be started."""
KERNEL_READY = "kernel ready"
"""The kernel has sent a message, of any kind."""
CELL_STARTED = "cell started"
"""The kernel has reported the start of the cell."""
CELL_DONE = "cell done"
"""The kernel has reported the end of the cell."""
INTERRUPT = "interrupt"
"""A client interrupts the cell, or its timeout has passed."""
KERNEL_ENDING = "kernel ending"
"""The kernel must be killed, or its process has ended by itself."""
KERNEL_GONE = "kernel gone"
"""The process of the kernel has ended, and all its output was read."""
REMOVE = "remove"
"""The context is removed."""

# -- actions -----------------------------------------------------------------------------------------------------------

START_KERNEL = "start kernel"
SERVE_KERNEL = "serve kernel"
"""Send the environment to the kernel, read its messages, and kill it if the first message does not arrive in time."""
DISCARD_KERNEL = "discard kernel"
"""End a kernel that is not needed any more."""
SETTLE_START = "settle start"
"""The kernel has started: cancel the deadline of the start, and begin the next start with the first way again."""
SEND_CELL = "send cell"
DEFER_SIGNAL = "defer signal"
"""Request a flush of the kernel's messages, and send SIGINT if the start of the cell is not reported soon."""
SIGNAL = "signal"
"""Send SIGINT, send it again after a while, and kill a kernel that does not react."""
FINISH_CELL = "finish cell"
"""End the cell with the kernel's result."""
FAIL_CELL = "fail cell"
"""End the running cell, if there is one, with an error, because its kernel is gone."""
END_KERNEL = "end kernel"
"""Kill the kernel and all processes that it started, and read its remaining output."""
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
        # The first message was among the remaining output: the kernel had started.
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
"""State -> value of ``schema.KERNEL_STATES`` that clients see."""


def step(state: str, event: str) -> tuple[str, tuple[str, ...]]:
    """Return the next state and the actions to perform, in order. Without an entry in the table, the state stays the same."""
    return TRANSITIONS[state].get(event, (state, ()))


def has_interruptible_cell(state: str) -> bool:
    """Return True if a cell runs and its kernel is not ending."""
    return state in {SENT, RUNNING, INTERRUPTING_SENT, INTERRUPTING}
