"""What was said of a process when it was started, and no guest tells of it: by which word it is found, where it began, with which environment.

Laws:
- A note is for who lists processes. Nothing depends on one: a service that was started anew has none, and tells that they are not known.
- They are bounded: so many of a sandbox, the oldest go first, and their bytes are counted (``core/node/budget.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sandlot.model.ids import ProcessId
from sandlot.model.specs import ProcessSpec

if TYPE_CHECKING:
    from sandlot.core.sandbox import Sandbox

MOST: Final = 1024
"""Of one sandbox: as many processes as one list tells of."""
_OWN_BYTES = 512


@dataclass(frozen=True, slots=True)
class Note:
    """What was said of one process.

    Args:
        tag: The word that its client found for it.
        cwd: Where it began; None is the default, or not known.
        env: What its client added to its environment; empty where there was no memory to keep it.
        spec: All that it was started with; None likewise.
    """

    tag: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    spec: ProcessSpec | None = None

    @property
    def size_bytes(self) -> int:
        """What it takes here, about."""
        argv = () if self.spec is None else self.spec.argv
        return _OWN_BYTES + sum(len(name) + len(value) for name, value in self.env.items()) + sum(map(len, argv))


NOTHING = Note()


def keep(box: Sandbox, process: ProcessId, spec: ProcessSpec) -> None:
    """Note what was said of a process that was just started."""
    if spec.hidden:
        return
    whole = Note(spec.tag, spec.cwd, spec.env, spec)
    for note in (whole, Note(spec.tag, spec.cwd)):
        if box.budget.try_take(note.size_bytes):
            box.notes[process] = note
            break
    while len(box.notes) > MOST:
        _drop(box, next(iter(box.notes)))


def of(box: Sandbox, process: ProcessId) -> Note:
    """What is known of a process."""
    return box.notes.get(process, NOTHING)


def forget(box: Sandbox) -> None:
    """The sandbox is no more."""
    for process in tuple(box.notes):
        _drop(box, process)


def _drop(box: Sandbox, process: ProcessId) -> None:
    box.budget.give(box.notes.pop(process).size_bytes)
