"""Code contexts of a sandbox, as ``sandbox.contexts``."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from sandlot.sdk import requests
from sandlot.sdk._async.code import interrupt
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.contexts import Context, context_id


class AsyncContexts:
    """The code contexts of one sandbox. Each context is an interpreter with its own variables."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/contexts"

    async def create(self, language: str = "python", *, cwd: str | None = None, envs: Mapping[str, str] | None = None) -> Context:
        """Create a context.

        Args:
            language: ``python``, ``javascript``, ``typescript``, ``bash`` or ``r``.
            cwd: Working directory, relative to that of the sandbox. Default: that of the sandbox.
            envs: Environment variables of everything that runs in the context.

        Raises:
            LimitError: The sandbox has its maximum number of contexts.
            UnsupportedError: The template has no interpreter for this language.
            SandboxEndedError: The sandbox has ended.
        """
        body = {"language": language, **requests.omit_none(cwd=cwd, env=None if envs is None else dict(envs))}
        response = await self._transport.request("POST", self._path, body=body, headers=requests.idempotency_headers(), idempotent=True)
        return structure(Context, response)

    async def list(self) -> builtins.list[Context]:
        """List all contexts."""
        response = await self._transport.request("GET", self._path)
        return structure_list(Context, response, "contexts")

    async def get(self, context: Context | str) -> Context:
        """Get a context as it is now.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        return structure(Context, await self._transport.request("GET", self._path_of(context)))

    async def delete(self, context: Context | str) -> None:
        """End a context and everything that runs in it. A default context starts again with its next run.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        await self._transport.request("DELETE", self._path_of(context))

    async def restart(self, context: Context | str = "default") -> None:
        """Restart a context: its variables are lost, code that runs in it is ended, and code that waits for its turn is not run.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        await self._transport.request("POST", f"{self._path_of(context)}/restart")

    async def interrupt(self, context: Context | str = "default") -> bool:
        """Interrupt the code that runs in a context, as Ctrl-C does. Returns False if nothing runs.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        return await interrupt(self._transport, self._path_of(context))

    def _path_of(self, context: Context | str) -> str:
        return f"{self._path}/{requests.path_segment(context_id(context) or '')}"
