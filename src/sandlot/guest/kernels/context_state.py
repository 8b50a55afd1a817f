"""The states of a code context, and one table of all transitions between them.

:func:`step` is pure: it returns the next state and the actions that :class:`~sandlot.guest.kernels.context.CodeContext` must perform.
States, events and actions are plain strings, because importing ``enum`` would slow down the start of the guest.

Invariants:
- For each cell that was sent to a kernel, exactly one of the actions ``FINISH_CELL`` and ``FAIL_CELL`` ends the cell.
- In a state whose name begins with ``ENDING``, a context sends neither cells nor signals. Such a state lasts until the process of the kernel
  has ended and all its output was read.
- An event that has no entry in ``TRANSITIONS`` for the present state is ignored.
"""

from __future__ import annotations

# -- states ------------------------------------------------------------------------------------------------------------

STOPPED = "stopped"
"""The context has no kernel. The next cell starts a kernel."""
REQUESTED = "requested"
"""The context has requested a kernel, and the process of the kernel does not exist yet."""
STARTING = "starting"
"""The process of the kernel runs, and has not sent its first message."""
IDLE = "idle"
"""The kernel runs and waits for a cell."""
SENT = "sent"
"""A cell was sent to the kernel, and the kernel has not reported the start of the cell. In this state the kernel may ignore SIGINT."""
RUNNING = "running"
"""The kernel has reported the start of the cell, and the cell has not ended."""
INTERRUPTING_SENT = "interrupting a sent cell"
"""A cell was sent to the kernel and is being interrupted, but the kernel has not reported the start of the cell."""
INTERRUPTING = "interrupting"
"""The kernel has reported the start of the cell, and the cell is being interrupted."""
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
"""The context needs a running kernel, even if no cell is queued."""
CELL_QUEUED = "cell queued"
"""The queue contains at least one cell."""
KERNEL_CREATED = "kernel created"
"""The process of the requested kernel exists."""
START_REFUSED = "start refused"
"""The requested kernel cannot be started."""
KERNEL_READY = "kernel ready"
"""The kernel has sent a message of any kind, which shows that it has started."""
CELL_STARTED = "cell started"
"""The kernel has reported the start of the cell."""
CELL_DONE = "cell done"
"""The kernel has reported the end of the cell."""
INTERRUPT = "interrupt"
"""A client interrupts the running cell, or the timeout of the cell has passed."""
KERNEL_ENDING = "kernel ending"
"""The kernel must be killed, or its process has ended by itself."""
KERNEL_GONE = "kernel gone"
"""The process of the kernel has ended, and all its output was read."""
REMOVE = "remove"
"""A client removes the context."""

# -- actions -----------------------------------------------------------------------------------------------------------

START_KERNEL = "start kernel"
"""Request a kernel from the starter."""
SERVE_KERNEL = "serve kernel"
"""Send the environment to the kernel, read its messages, and kill the kernel if its first message does not arrive in time."""
DISCARD_KERNEL = "discard kernel"
"""Kill a kernel that was requested before the context was removed."""
SETTLE_START = "settle start"
"""Cancel the deadline for the start of the kernel. The next kernel is started in the first way of ``starter.START_ORDER`` again."""
SEND_CELL = "send cell"
"""Send the first queued cell to the kernel, and start the timeout of the cell."""
DEFER_SIGNAL = "defer signal"
"""Request a flush of the kernel's messages, and send SIGINT if the kernel does not report the start of the cell soon."""
SIGNAL = "signal"
"""Send SIGINT to the kernel at each of ``context.SIGNAL_TIMES_S``. Kill the kernel if the cell does not end after the last signal."""
FINISH_CELL = "finish cell"
"""End the running cell with the status that the kernel has reported."""
FAIL_CELL = "fail cell"
"""End the running cell, if there is one, with an error that gives the reason for the end of the kernel."""
END_KERNEL = "end kernel"
"""Kill the kernel and all processes that it started, and read the output that they have left in the socket and the pipes."""
RETRY_START = "retry start"
"""After a failed start, select the next way in ``starter.START_ORDER``, or fail the first queued cell if no other way will be tried."""
RELEASE_KERNEL = "release kernel"
"""Drop the reference to the ended kernel, and cancel the timers of the context."""

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
        # The kernel's first message arrived after the kill: the kernel had started, so its end does not count as a failed start.
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
"""State -> event -> (next state, actions in the order in which they must be performed)."""

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
"""State -> state that clients see: a value of ``schema.KERNEL_STATES``."""


def step(state: str, event: str) -> tuple[str, tuple[str, ...]]:
    """Return the state after an event, and the actions that the caller must perform, in order.

    If ``TRANSITIONS`` has no entry for the state and the event, the state stays the same and there are no actions.

    Args:
        state: Present state of the context.
        event: Event that has occurred.
    """
    return TRANSITIONS[state].get(event, (state, ()))


def has_interruptible_cell(state: str) -> bool:
    """Return True if, in this state, a cell was sent to the kernel and has not ended, and the kernel itself is not ending."""
    return state in {SENT, RUNNING, INTERRUPTING_SENT, INTERRUPTING}
