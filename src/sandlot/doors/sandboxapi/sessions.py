"""Sessions and what is done in them: what core is asked to do, in which order.

Laws:
- A session that was closed, or ended by itself, is not found; whose it was makes no difference.
- A client that goes away interrupts its code; the session stays.
"""

from __future__ import annotations

from contextlib import suppress

from sandlot.core.oneshot.execute import execute as run_once
from sandlot.core.records.executions import Label
from sandlot.core.runs import code, installing
from sandlot.core.runs.code import Cell
from sandlot.core.runs.requirements import Installing, choose_manager
from sandlot.core.sandbox import Sandbox
from sandlot.core.service import Core
from sandlot.doors.sandboxapi import translate
from sandlot.doors.sandboxapi.wire import CodeAnswer, CodeBody, ExecuteAnswer, ExecuteBody, InstallAnswer, InstallBody, SessionAnswer, SessionBody
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, NotFoundError, SandboxEndedError


def find(core: Core, who: Principal, session: str) -> Sandbox:
    """A session.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is none, or none any more, or it is somebody else's.
    """
    box: Sandbox | None = None
    with suppress(NotFoundError):
        box = core.sandboxes.find(session, who)
    if box is None or not translate.is_session(box) or translate.is_over(box):
        raise translate.no_session(session)
    return box


def told(core: Core, box: Sandbox) -> SessionAnswer:
    """What is told of a session."""
    return translate.session(box, core.clock.now(), core.clock.monotonic_s())


def listing(core: Core, who: Principal) -> list[SessionAnswer]:
    """All sessions that somebody has, oldest first."""
    return [told(core, box) for box in core.sandboxes.all(who) if translate.is_session(box) and not translate.is_over(box)]


async def create(core: Core, who: Principal, body: SessionBody) -> SessionAnswer:
    """Make a session.

    Raises:
        SandlotError: It could not be made; then nothing is left of it.
    """
    spoken = translate.language(body.language)
    return told(core, await core.sandboxes.create(translate.new_session(spoken, body.idle_ttl, who), who))


async def close(core: Core, who: Principal, session: str) -> None:
    """End a session.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    await core.sandboxes.kill(find(core, who, session).id, who)


async def execute(core: Core, who: Principal, session: str, body: CodeBody) -> CodeAnswer:
    """Run code in a session, where everything is that was there after the code before.

    Raises:
        NotFoundError: ``sandbox_not_found``.
        InvalidRequestError: It has input, is in another language, or out of bounds.
    """
    box = find(core, who, session)
    spoken = translate.spoken_in(box)
    if body.language is not None and translate.language(body.language) != spoken:
        raise InvalidRequestError(
            f"This session speaks {spoken.id}.", hint="Create another session for another language.", fields={"field": "language"}
        )
    if body.stdin:
        raise InvalidRequestError(
            "Code in a session has no standard input.", hint="Put it into a variable or a file, or use /v1/execute.", fields={"field": "stdin"}
        )
    timeout_s = translate.timeout(body.timeout)
    cell = Cell(body.code, language=spoken.ours, timeout_s=timeout_s)
    try:
        return translate.code_answer(box, await code.execute(box, cell, label=Label(origin=translate.NAME)), timeout_s)
    except SandboxEndedError as error:
        raise translate.no_session(session, error) from None


async def install(core: Core, who: Principal, session: str, body: InstallBody) -> InstallAnswer:
    """Install packages in a session; what runs there can import them at once.

    Raises:
        NotFoundError: ``sandbox_not_found``.
        InvalidRequestError: No such package manager, or what is no package.
    """
    box = find(core, who, session)
    asked = Installing(choose_manager(body.manager), tuple(body.packages), timeout_s=translate.timeout(body.timeout))
    try:
        return translate.install_answer(asked, await installing.install(box, asked, who.quota, label=Label(origin=translate.NAME)))
    except SandboxEndedError as error:
        raise translate.no_session(session, error) from None


async def run(core: Core, who: Principal, body: ExecuteBody) -> ExecuteAnswer:
    """Run a program once, in a sandbox of its own.

    Raises:
        SandlotError: It could not be run. A program that fails is no error.
    """
    spoken = translate.language(body.language)
    return translate.answer(await run_once(core.sandboxes, who, translate.shot(body)), spoken)
