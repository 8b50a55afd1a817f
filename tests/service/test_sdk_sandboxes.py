"""The SDK's words about sandboxes against a service: made once, found again, changed, ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot import AsyncClient, AsyncSandbox, ConflictError, InvalidRequestError, NotFoundError
from sandlot.sdk import SandboxInfo
from sandlot.server.serve import answering
from sandlot.web import listen
from tests.support.service import Bench
from tests.support.serving import at, folder

__all__ = ["at", "folder"]

PIDS = 32768
"""Without isolation the guest's limit counts the processes of the whole machine."""


@pytest.fixture
async def client(at: Bench) -> AsyncIterator[AsyncClient]:
    path = at.service.settings.socket
    async with answering(at.service, [listen.unix_socket(path)]), AsyncClient(url=f"unix://{path}") as made:
        yield made


async def test_one_key_makes_one_sandbox(client: AsyncClient) -> None:
    first = await AsyncSandbox.create("base", pids=PIDS, idempotency_key="mine", client=client)
    again = await AsyncSandbox.create("base", pids=PIDS, idempotency_key="mine", client=client)
    assert again.id == first.id
    with pytest.raises(ConflictError):
        await AsyncSandbox.create("base", pids=PIDS, idempotency_key="mine", name="another", client=client)
    with pytest.raises(InvalidRequestError):
        await AsyncSandbox.create("base", pids=PIDS, idempotency_key="two words", client=client)
    assert [info.id for info in await client.sandboxes()] == [first.id]
    await first.kill()


async def test_sandboxes_are_found_by_what_is_known_of_them(client: AsyncClient) -> None:
    made = [await AsyncSandbox.create("base", pids=PIDS, metadata={"n": str(n), "kind": "odd" if n % 2 else "even"}, client=client) for n in range(3)]
    ids = [sandbox.id for sandbox in made]
    assert [info.id for info in await AsyncSandbox.list(client=client)] == ids
    assert [info.id for info in await AsyncSandbox.list(metadata={"kind": "even"}, client=client)] == [ids[0], ids[2]]
    assert [info.id for info in await AsyncSandbox.list(metadata={"kind": "even", "n": "2"}, client=client)] == [ids[2]]
    assert [info.id for info in await AsyncSandbox.list(limit=2, client=client)] == ids[:2]
    assert [info.id async for info in client.items("/v1/sandboxes", "sandboxes", SandboxInfo.parse, params={"limit": 1})] == ids
    await made[1].kill()
    await made[1].kill()
    assert [info.id for info in await AsyncSandbox.list(state="running", client=client)] == [ids[0], ids[2]]
    assert [info.id for info in await AsyncSandbox.list(ended=True, client=client)] == ids
    with pytest.raises(InvalidRequestError):
        await AsyncSandbox.list(state="dreaming", client=client)
    for sandbox in made:
        await sandbox.kill()


async def test_a_sandbox_is_changed_and_says_so(client: AsyncClient) -> None:
    made = await AsyncSandbox.create("base", pids=PIDS, timeout=100, idle_timeout=50, client=client)
    sandbox = await AsyncSandbox.connect(made.id, client=client)
    info = await sandbox.info()
    assert (info.timeout_s, info.idle_timeout_s, info.persistent) == (100, 50, False)
    await sandbox.set_timeout(None)
    await sandbox.set_idle_timeout(None)
    info = await sandbox.info()
    assert (info.timeout_s, info.idle_timeout_s, info.persistent, info.expires_at) == (None, None, True, None)
    await sandbox.set_timeout(200)
    assert (await sandbox.info()).persistent is False
    assert await sandbox.update_metadata({"a": "b"}) == {"a": "b"} == (await made.info()).metadata
    await sandbox.kill()
    assert (await client.sandbox(made.id)).ended_at is not None
    with pytest.raises(NotFoundError):
        await AsyncSandbox.connect("sb-aaaa-aaaaaaaaaaaaaaaa", client=client)
