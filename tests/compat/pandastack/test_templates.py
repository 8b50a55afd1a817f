"""PandaStack's templates by their names, with its own client, on a service whose sandboxes are simulated."""

from __future__ import annotations

import asyncio

import pytest
from pandastack import Client

NAMES = ("base", "code-interpreter", "agent", "claude", "codex")


async def test_templates_of_the_service_are_listed_and_found(client: Client) -> None:
    listed = {each.name: each for each in await asyncio.to_thread(client.templates.list)}
    assert set(NAMES) <= set(listed)
    for name in NAMES:
        found = await asyncio.to_thread(client.templates.get, name)
        assert (found.name, found.is_global, found.description) == (name, True, listed[name].description)


@pytest.mark.parametrize("name", NAMES)
async def test_sandbox_is_created_from_a_template(client: Client, name: str) -> None:
    made = await asyncio.to_thread(client.sandboxes.create, template=name)
    assert (made.template, made.status) == (name, "running")
    await asyncio.to_thread(made.kill)
