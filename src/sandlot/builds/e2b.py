"""Steps of E2B's API as steps of a plan. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.builds.plan import (
    MAX_STEPS,
    Action,
    Base,
    BuildPlan,
    Copy,
    Env,
    FixedSteps,
    Run,
    SetUser,
    Shell,
    Stage,
    Step,
    WorkingDirectory,
    parse_mode,
    shown,
)
from sandlot.model.errors import InvalidRequestError

USER: Final = "user"
HOME: Final = "/home/user"
SHELL: Final = ("/bin/bash", "-l", "-c")
_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class TemplateStep:
    """A step as E2B's clients send it.

    Args:
        kind: Type of the step: ``RUN``, ``COPY``, ``ENV``, ``WORKDIR`` or ``USER``.
        args: Arguments of the step.
        files_hash: Hash of the files of a ``COPY``, which names the archive; empty for other steps.
        force: True to run the step again although the cache has its result.
    """

    kind: str
    args: Sequence[str]
    files_hash: str = ""
    force: bool = False


def stage_of(base: Base, steps: Sequence[TemplateStep]) -> Stage:
    """Return the stage that runs the steps. Variables are left to the shell.

    Args:
        base: Base of the template.
        steps: Steps as the client sent them.

    Raises:
        InvalidRequestError: A step has an unknown type, or wrong arguments; the message names its number.
    """
    if len(steps) > MAX_STEPS:
        raise InvalidRequestError(f"The build has {len(steps)} steps; at most {MAX_STEPS} are allowed.", hint="Join commands with `&&`.")
    found = [Step("base", f"SHELL {SHELL!r}", Shell(SHELL))]
    user = USER
    for number, step in enumerate(steps, 1):
        text = shown(f"{step.kind} {' '.join(step.args)}")
        try:
            action = _action(step, user)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"Step {number} ({text}): {error.message}", hint=error.hint, fields={"step": number}) from None
        found.append(Step(str(number), text, action))
        user = action.user if isinstance(action, SetUser) else user
    return Stage(base, FixedSteps(tuple(found)))


def plan_of(base: Base, steps: Sequence[TemplateStep], **settings: object) -> BuildPlan:
    """Return the plan of a template of E2B's API, whose commands run as ``user`` in its home folder unless a step says otherwise.

    Args:
        base: Base of the template.
        steps: Steps as the client sent them.
        settings: Further fields of :class:`BuildPlan`, such as ``contexts`` and ``start_command``.
    """
    force = any(step.force for step in steps)
    return BuildPlan((stage_of(base, steps),), **{"user": USER, "working_dir": HOME, "ignores_cache": force, **settings})  # type: ignore[arg-type]


def _action(step: TemplateStep, owner: str) -> Action:
    args = [*step.args]
    match step.kind:
        case "RUN" if 1 <= len(args) <= _PAIR:
            return Run(args[0], user=args[1] if len(args) == _PAIR else "")
        case "COPY" if len(args) >= _PAIR:
            user, mode = (*args[_PAIR:], "", "")[:_PAIR]
            if not step.files_hash:
                raise InvalidRequestError("A COPY needs `filesHash`.", hint="Upload the files first.")
            return Copy((args[0],), args[1], origin=step.files_hash, owner=user or owner, mode=parse_mode(mode) if mode else None, follow=False)
        case "ENV" if args and len(args) % _PAIR == 0:
            return Env(dict(zip(args[::2], args[1::2], strict=True)))
        case "WORKDIR" if len(args) == 1:
            return WorkingDirectory(args[0])
        case "USER" if len(args) == 1:
            return SetUser(args[0], creates=True)
        case "RUN" | "COPY" | "ENV" | "WORKDIR" | "USER":
            raise InvalidRequestError(f"{step.kind} has {len(args)} arguments, which is not a valid number.", hint="Update the client.")
        case _:
            raise InvalidRequestError(f"{step.kind[:50]!r} is not a type of step.", hint="Use RUN, COPY, ENV, WORKDIR or USER.")
