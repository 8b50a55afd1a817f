"""The suite of pydantic-ai's workspaces."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from sandlot import AsyncClient, NotFoundError
from sandlot.agents.pydantic_ai import SandboxWorkspace


class TestSandboxWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    async def client(self) -> AsyncIterator[AsyncClient]:
        async with AsyncClient() as client:
            yield client

    @pytest.fixture
    async def made(self, client: AsyncClient) -> AsyncIterator[list[SandboxWorkspace]]:
        """Workspaces whose sandboxes are ended after the test."""
        workspaces: list[SandboxWorkspace] = []
        yield workspaces
        for workspace in workspaces:
            if workspace.ref is not None:
                with suppress(NotFoundError):
                    await client.sandboxes.kill(workspace.ref.id)

    @pytest.fixture
    def fresh_backend(self, client: AsyncClient, made: list[SandboxWorkspace]) -> Callable[[], WorkspaceBackend]:
        def create() -> WorkspaceBackend:
            made.append(SandboxWorkspace(template=os.environ["SUITE_TEMPLATE"], client=client))
            return made[-1]

        return create

    @pytest.fixture
    def backend(self, fresh_backend: Callable[[], WorkspaceBackend]) -> WorkspaceBackend:
        return fresh_backend()

    @pytest.fixture
    def attach_backend(self, client: AsyncClient) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: SandboxWorkspace(ref, client=client)

    @pytest.fixture
    def destroy_environment(self, client: AsyncClient) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert backend.ref is not None
            await client.sandboxes.kill(backend.ref.id)

        return destroy
