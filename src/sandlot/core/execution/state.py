"""State table of an execution: a cell, a process or an installation of packages.

The *owner* is the client on whose request the execution runs. If Sandlot chose the id, the owner is the client that started the execution. If the
client chose the id, the clients that follow the execution own it together, and the owner leaves when the last of them leaves.

Invariants:
- :func:`step` refuses every pair of state and event that :data:`TABLE` does not list.
- The log entry is open from the start until ENDED. In LEFT, the entry stays open for the next service or the next wake.
- An execution that is to be stopped stays STOPPING until the guest reports its end, and is logged as killed.
- The timer runs only in LINGERING.
- A signal or an interrupt of a client goes to the guest and is no event: the state changes when the guest reports the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from sandlot.model.errors import InternalError


class Kind(StrEnum):
    """Kind of an execution. The kind decides how the execution is stopped and when it counts as activity."""

    CELL = "cell"
    """Stopped by an interrupt."""
    PROCESS = "process"
    """Stopped by SIGKILL to its process group."""
    INSTALL = "install"
    """Stopped by SIGTERM, and by SIGKILL 10 s later."""


class State(StrEnum):
    """State of an execution."""

    STARTING = "starting"
    FOLLOWED = "followed"
    LINGERING = "lingering"
    """No client is connected, and a client may come back."""
    UNATTENDED = "unattended"
    """Continues until its own end, with or without clients."""
    STOPPING = "stopping"
    LEFT = "left"
    """Left to the next service, or to the next wake of the hibernated sandbox."""
    ENDED = "ended"


class Event(StrEnum):
    """Event in the life of an execution."""

    STARTED = "started for a client"
    LAUNCHED = "launched"
    NOT_STARTED = "start failed or was cancelled"
    CLIENT_FOLLOWS = "client follows"
    CLIENT_LEAVES = "client leaves"
    OWNER_LEAVES = "owner leaves, id chosen by Sandlot"
    OWNER_AWAY = "owner leaves, id chosen by the client"
    OWNER_DETACHES = "owner detaches"
    TIMER_ENDS = "timer ends"
    GUEST_ENDS = "guest reports the end"
    FORGOTTEN = "guest does not know the execution"
    GONE = "sandbox ended, or link lost for good"
    SUSPENDED = "service stops, or sandbox hibernates"
    FOUND = "found by the next service or after a wake"
    FOUND_CELL = "foreground cell found by the next service or after a wake"


class Action(StrEnum):
    """Action that a transition requires."""

    BEGIN_ENTRY = "begin log entry"
    STOP = "stop, if the request was sent"
    WAIT_AWAY = "set timer to 3 s"
    WAIT_BACK = "set timer to 10 s"
    END_ENTRY = "end log entry with the guest's status"
    END_KILLED = "end log entry as killed"
    END_GONE = "end log entry by the end of the sandbox"
    END_LOST = "end log entry as lost"
    LEAVE_ENTRY = "leave log entry open"
    RELEASE = "close package access, forget the id and the owner"


Outcome = tuple[State, tuple[Action, ...]]

_LIVE: Final = (State.STARTING, State.FOLLOWED, State.LINGERING, State.UNATTENDED, State.STOPPING)

TABLE: Final[Mapping[tuple[State, Event], Outcome]] = MappingProxyType(
    {
        **{(state, Event.GUEST_ENDS): (State.ENDED, (Action.END_ENTRY, Action.RELEASE)) for state in _LIVE},
        **{(state, Event.FORGOTTEN): (State.ENDED, (Action.END_LOST, Action.RELEASE)) for state in (*_LIVE, State.LEFT)},
        **{(state, Event.GONE): (State.ENDED, (Action.END_GONE, Action.RELEASE)) for state in (*_LIVE, State.LEFT)},
        **{(state, Event.SUSPENDED): (State.LEFT, (Action.LEAVE_ENTRY, Action.RELEASE)) for state in (*_LIVE, State.LEFT)},
        **{(state, Event.CLIENT_FOLLOWS): (state, ()) for state in (State.STARTING, State.FOLLOWED, State.UNATTENDED, State.STOPPING, State.LEFT)},
        **{(state, Event.CLIENT_LEAVES): (state, ()) for state in State if state is not State.LINGERING},
        (State.STARTING, Event.STARTED): (State.FOLLOWED, (Action.BEGIN_ENTRY,)),
        (State.STARTING, Event.LAUNCHED): (State.UNATTENDED, (Action.BEGIN_ENTRY,)),
        (State.STARTING, Event.NOT_STARTED): (State.ENDED, (Action.STOP, Action.RELEASE)),
        (State.STARTING, Event.SUSPENDED): (State.LEFT, (Action.BEGIN_ENTRY, Action.LEAVE_ENTRY, Action.RELEASE)),
        (State.FOLLOWED, Event.OWNER_LEAVES): (State.STOPPING, (Action.STOP,)),
        (State.FOLLOWED, Event.OWNER_AWAY): (State.LINGERING, (Action.WAIT_AWAY,)),
        (State.FOLLOWED, Event.OWNER_DETACHES): (State.UNATTENDED, ()),
        (State.LINGERING, Event.CLIENT_FOLLOWS): (State.FOLLOWED, ()),
        (State.LINGERING, Event.TIMER_ENDS): (State.STOPPING, (Action.STOP,)),
        (State.STOPPING, Event.GUEST_ENDS): (State.ENDED, (Action.END_KILLED, Action.RELEASE)),
        (State.LEFT, Event.FOUND_CELL): (State.LINGERING, (Action.WAIT_BACK,)),
        (State.LEFT, Event.FOUND): (State.UNATTENDED, ()),
    }
)
"""State and event -> next state and actions. Actions are carried out in their order, after the state has changed."""


def step(state: State, event: Event) -> Outcome:
    """Return the next state and the actions of a transition.

    Raises:
        InternalError: :data:`TABLE` does not list the pair.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        raise InternalError(f"An execution that is {state} does not accept the event {event!r}.") from None


def holds_activity(state: State, kind: Kind) -> bool:
    """Return True if an execution keeps its sandbox from being idle while no client is attached. An unattended process never does."""
    if state is State.UNATTENDED:
        return kind is Kind.CELL
    return state in _LIVE
