"""What was said of a process when it was started, and no guest tells of it: by which word it is found, where it began, with which environment.

Laws:
- A note is for who lists processes. Nothing depends on one: a service that was started anew has none, and tells that they are not known.
- They are bounded in bytes, which are counted (``core/node/buffer_budget.py``): those of processes that are known to have ended go
  first, then the oldest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from sandlot.model.ids import ProcessId
from sandlot.model.specs import KIB, ProcessSpec

if TYPE_CHECKING:
    from sandlot.core.sandbox import Sandbox

MOST_BYTES: Final = 128 * KIB
"""Of one sandbox's: some hundred notes, and no more than a client may hold for nothing."""
ONE_MOST_BYTES: Final = 16 * KIB
"""Of one environment and command line; of larger ones nothing but tag and folder is noted."""
_OWN_BYTES = 256


@dataclass(frozen=True, slots=True)
class ProcessDetails:
    """What was said of one process.

    Args:
        tag: The word that its client found for it.
        cwd: Where it began; None is the default, or not known.
        env: What its client added to its environment; empty where that is too large to be noted.
        spec: All that it was started with; None likewise.
        size_bytes: What the note takes, about.
        ended: Whether the process is known to have ended.
    """

    tag: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    spec: ProcessSpec | None = None
    size_bytes: int = 0
    ended: bool = False


NOTHING = ProcessDetails()


def keep(sandbox: Sandbox, process: ProcessId, spec: ProcessSpec) -> None:
    """Note what was said of a process that was just started."""
    if spec.hidden:
        return
    least = _OWN_BYTES + len(spec.tag or "") + len(spec.cwd or "")
    size = sum(len(name) + len(value) for name, value in spec.env.items()) + sum(map(len, spec.argv))
    whole = size <= ONE_MOST_BYTES
    note = ProcessDetails(spec.tag, spec.cwd, spec.env, spec, least + size) if whole else ProcessDetails(spec.tag, spec.cwd, size_bytes=least)
    while sandbox.notes and sum(each.size_bytes for each in sandbox.notes.values()) + note.size_bytes > MOST_BYTES:
        _drop(sandbox, next((known for known, each in sandbox.notes.items() if each.ended), next(iter(sandbox.notes))))
    if sandbox.buffers.try_take(note.size_bytes):
        sandbox.notes[process] = note


def ended(sandbox: Sandbox, process: ProcessId) -> None:
    """That process has ended: what was noted of it goes before what is noted of those that run."""
    note = sandbox.notes.get(process)
    if note is not None:
        sandbox.notes[process] = replace(note, ended=True)


def of(sandbox: Sandbox, process: ProcessId) -> ProcessDetails:
    """What is known of a process."""
    return sandbox.notes.get(process, NOTHING)


def forget(sandbox: Sandbox) -> None:
    """The sandbox is no more."""
    for process in tuple(sandbox.notes):
        _drop(sandbox, process)


def _drop(sandbox: Sandbox, process: ProcessId) -> None:
    sandbox.buffers.give(sandbox.notes.pop(process).size_bytes)
