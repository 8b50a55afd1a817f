"""Programs and sessions of SandboxAPI: calls of several node operations in order.

Invariants:
- A session that was closed, that ended by itself, or that belongs to another owner is not found.
- If a client disconnects, its code is interrupted; the session stays.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sandlot.compat.common import find_live_sandbox, find_live_sandboxes, session_metadata
from sandlot.compat.sandboxapi import translate
from sandlot.compat.sandboxapi.schemas import (
    CodeResponse,
    CreateSessionRequest,
    ExecuteRequest,
    ExecuteResponse,
    InstallPackagesRequest,
    InstallResponse,
    LanguageListResponse,
    RunCodeRequest,
    SessionResponse,
)
from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.packages import InstallParams, choose_manager
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.specs import CellSpec

_OPTIONS = ExecutionOptions(origin=translate.VENDOR)


async def find_session(node: Node, principal: Principal, session: str) -> SandboxInfo:
    """Return a session by its id.

    Raises:
        NotFoundError: There is no such session, it has ended, or it belongs to another owner (code ``sandbox_not_found``).
    """
    sandbox: SandboxInfo | None = None
    with suppress(NotFoundError, SandboxEndedError):
        sandbox = await find_live_sandbox(node, principal, session)
    if sandbox is None or not translate.is_usable(sandbox):
        raise translate.session_not_found(session)
    return sandbox


async def list_sessions(node: Node, principal: Principal) -> list[SessionResponse]:
    """Return all sessions that a principal may see, oldest first."""
    sandboxes = await find_live_sandboxes(node, principal, session_metadata(translate.VENDOR))
    return [translate.session_response(sandbox) for sandbox in sandboxes if translate.is_usable(sandbox)]


async def create_session(node: Node, principal: Principal, body: CreateSessionRequest) -> SessionResponse:
    """Create a session.

    Raises:
        SandlotError: The session could not be created; then nothing is left of it.
    """
    language = translate.language(body.language)
    params = translate.session_params(language, body.idle_ttl, principal)
    template = await node.languages.choose(principal, language.session_needs)
    return translate.session_response(await node.sandboxes.create(principal, replace(params, template=template)))


async def list_languages(node: Node, principal: Principal) -> LanguageListResponse:
    """Return all languages, with the versions of the templates that run them."""
    return LanguageListResponse(languages=[translate.language_response(each) for each in await node.languages.list(principal)])


async def close_session(node: Node, principal: Principal, session: str) -> None:
    """Kill a session.

    Raises:
        NotFoundError: There is no such session (code ``sandbox_not_found``).
    """
    await node.sandboxes.kill(principal, (await find_session(node, principal, session)).id)


async def run_code(node: Node, principal: Principal, session: str, body: RunCodeRequest) -> CodeResponse:
    """Run code in a session, with the variables of earlier code.

    Raises:
        NotFoundError: There is no such session (code ``sandbox_not_found``).
        InvalidRequestError: The request has standard input, another language, or a timeout out of bounds.
    """
    sandbox = await find_session(node, principal, session)
    language = translate.language_of(sandbox)
    if body.language is not None and translate.language(body.language) != language:
        raise InvalidRequestError(
            f"This session speaks {language.id}.", hint="Create another session for another language.", fields={"field": "language"}
        )
    if body.stdin:
        raise InvalidRequestError(
            "Code in a session has no standard input.", hint="Put the input into a variable or a file, or use /v1/execute.", fields={"field": "stdin"}
        )
    timeout_s = translate.timeout_s(body.timeout)
    cell = CellSpec(body.code, language=language.language.name, timeout_s=timeout_s)
    try:
        return translate.code_response(sandbox, await node.code.run(principal, sandbox.id, cell, _OPTIONS), timeout_s)
    except SandboxEndedError as error:
        raise translate.session_not_found(session, error) from None


async def install_packages(node: Node, principal: Principal, session: str, body: InstallPackagesRequest) -> InstallResponse:
    """Install packages in a session. Running interpreters can import them at once.

    Raises:
        NotFoundError: There is no such session (code ``sandbox_not_found``).
        InvalidRequestError: The package manager is unknown, or a package name is invalid.
    """
    sandbox = await find_session(node, principal, session)
    params = InstallParams(choose_manager(body.manager), tuple(body.packages), timeout_s=translate.timeout_s(body.timeout))
    try:
        return translate.install_response(params, await node.packages.install(principal, sandbox.id, params, _OPTIONS))
    except SandboxEndedError as error:
        raise translate.session_not_found(session, error) from None


async def run_program(node: Node, principal: Principal, body: ExecuteRequest) -> ExecuteResponse:
    """Run a program once, in a sandbox of its own.

    Raises:
        SandlotError: The program could not be run. A program that fails is not an error.
    """
    language = translate.language(body.language)
    return translate.execute_response(await node.programs.run(principal, translate.program_params(body)), language)
