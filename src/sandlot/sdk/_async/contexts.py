"""The contexts of a sandbox: made, listed, begun anew, interrupted, removed."""

from __future__ import annotations

import builtins
from collections.abc import Mapping

from sandlot.sdk import requests
from sandlot.sdk._async.code import interrupt
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.models.contexts import Context, context_id


class AsyncContexts:
    """The contexts of one sandbox: kernels, each with its own variables."""

    def __init__(self, transport: AsyncTransport, path: str) -> None:
        self._transport = transport
        self._path = path

    async def create(self, language: str = "python", *, cwd: str | None = None, envs: Mapping[str, str] | None = None) -> Context:
        """Make another context.

        Args:
            language: ``python``, ``bash`` or ``javascript``.
            cwd: The folder to start in, absolute; by default ``/workspace``.
            envs: Environment of everything that runs in it.

        Raises:
            InvalidRequestError: The language is none of these, or the folder or environment is none.
            LimitError: The sandbox has as many as it may.
            SandboxEndedError: The sandbox has ended.
        """
        body = {"language": language, **requests.omit_none(cwd=cwd, env=None if envs is None else dict(envs))}
        return structure(
            Context, await self._transport.request("POST", self._path, body=body, headers=requests.idempotency_headers(), idempotent=True)
        )

    async def list(self) -> builtins.list[Context]:
        """All that there are."""
        answer = await self._transport.request("GET", self._path)
        return structure_list(Context, answer, "contexts")

    async def get(self, context: Context | str) -> Context:
        """One of them as it is now.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        return structure(Context, await self._transport.request("GET", self._of(context)))

    async def remove(self, context: Context | str) -> None:
        """End a context, and everything that runs in it. One that is there always starts anew with the next cell.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        await self._transport.request("DELETE", self._of(context))

    async def restart(self, context: Context | str = "default") -> None:
        """Begin anew in a context: its variables are gone, what ran in it is ended, what waited for its turn never runs.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        await self._transport.request("POST", f"{self._of(context)}/restart")

    async def interrupt(self, context: Context | str = "default") -> bool:
        """Interrupt what runs in a context, as Ctrl-C would; False when nothing does.

        Raises:
            NotFoundError: ``context_not_found``.
        """
        return await interrupt(self._transport, self._of(context))

    def _of(self, context: Context | str) -> str:
        return f"{self._path}/{requests.path_segment(context_id(context) or '')}"
