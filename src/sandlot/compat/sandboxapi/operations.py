"""Sessions and what is done in them: what core is asked to do, in which order.

Laws:
- A session that was closed, or ended by itself, is not found; whose it was makes no difference.
- A client that goes away interrupts its code; the session stays.
"""

from __future__ import annotations

from contextlib import suppress

from sandlot.compat.common import find_live_sandbox, find_live_sandboxes
from sandlot.compat.sandboxapi import translate
from sandlot.compat.sandboxapi.schemas import CodeAnswer, CodeBody, ExecuteAnswer, ExecuteBody, InstallAnswer, InstallBody, SessionAnswer, SessionBody
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.packages import InstallParams, choose_manager
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.specs import CellSpec

_OPTIONS = ExecutionOptions(origin=translate.NAME)


async def find(node: Node, principal: Principal, session: str) -> SandboxInfo:
    """Return a session by its id.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is no such session, it has ended, or it belongs to another owner.
    """
    sandbox: SandboxInfo | None = None
    with suppress(NotFoundError, SandboxEndedError):
        sandbox = await find_live_sandbox(node, principal, session)
    if sandbox is None or not translate.is_session(sandbox):
        raise translate.no_session(session)
    return sandbox


async def listing(node: Node, principal: Principal) -> list[SessionAnswer]:
    """Return all sessions that a principal may see, oldest first."""
    found = await find_live_sandboxes(node, principal, translate.SESSION_METADATA)
    return [translate.session(sandbox) for sandbox in found if translate.is_session(sandbox)]


async def create(node: Node, principal: Principal, body: SessionBody) -> SessionAnswer:
    """Create a session.

    Raises:
        SandlotError: The session could not be created; then nothing is left of it.
    """
    spoken = translate.language(body.language)
    return translate.session(await node.sandboxes.create(principal, translate.new_session(spoken, body.idle_ttl, principal)))


async def close(node: Node, principal: Principal, session: str) -> None:
    """End a session.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    await node.sandboxes.kill(principal, (await find(node, principal, session)).id)


async def execute(node: Node, principal: Principal, session: str, body: CodeBody) -> CodeAnswer:
    """Run code in a session, where everything is that was there after the code before.

    Raises:
        NotFoundError: ``sandbox_not_found``.
        InvalidRequestError: It has input, is in another language, or out of bounds.
    """
    sandbox = await find(node, principal, session)
    spoken = translate.spoken_in(sandbox)
    if body.language is not None and translate.language(body.language) != spoken:
        raise InvalidRequestError(
            f"This session speaks {spoken.id}.", hint="Create another session for another language.", fields={"field": "language"}
        )
    if body.stdin:
        raise InvalidRequestError(
            "Code in a session has no standard input.", hint="Put it into a variable or a file, or use /v1/execute.", fields={"field": "stdin"}
        )
    timeout_s = translate.timeout(body.timeout)
    cell = CellSpec(body.code, language=spoken.ours, timeout_s=timeout_s)
    try:
        return translate.code_answer(sandbox, await node.code.run(principal, sandbox.id, cell, _OPTIONS), timeout_s)
    except SandboxEndedError as error:
        raise translate.no_session(session, error) from None


async def install(node: Node, principal: Principal, session: str, body: InstallBody) -> InstallAnswer:
    """Install packages in a session; what runs there can import them at once.

    Raises:
        NotFoundError: ``sandbox_not_found``.
        InvalidRequestError: No such package manager, or what is no package.
    """
    sandbox = await find(node, principal, session)
    asked = InstallParams(choose_manager(body.manager), tuple(body.packages), timeout_s=translate.timeout(body.timeout))
    try:
        return translate.install_answer(asked, await node.packages.install(principal, sandbox.id, asked, _OPTIONS))
    except SandboxEndedError as error:
        raise translate.no_session(session, error) from None


async def run(node: Node, principal: Principal, body: ExecuteBody) -> ExecuteAnswer:
    """Run a program once, in a sandbox of its own.

    Raises:
        SandlotError: It could not be run. A program that fails is no error.
    """
    spoken = translate.language(body.language)
    return translate.answer(await node.programs.run(principal, translate.shot(body)), spoken)
