"""Forks on a real driver: children that go on from where their parent is and are themselves from then on; and the trees that they grow into."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.core.saved.forks import NewFork
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, LimitError, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.errors import UnsupportedError as Unsupported
from sandlot.model.specs import MIB, Network, OnTimeout
from sandlot.model.states import State as Life
from sandlot.server.compose import Service
from tests.support.saving import BASE, IN_CONTAINER, SMALL, State, cell, check, fill, gone, make, place, real_service, saved, shell
from tests.support.until import until

pytestmark = pytest.mark.slow

ALICE = Principal(owner=OwnerId("a11ce0a11ce0"), name="alice")

DRAWS = """
import json, os, random, uuid
print(json.dumps([os.urandom(16).hex(), random.random(), str(uuid.uuid4())]))
"""
"""What children of one fork must not have in common."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with place() as made:
        yield made


@pytest.fixture(scope="module")
async def service(folder: Path) -> AsyncGenerator[Service]:
    # How much this machine has is nothing to these tests: what it can hold is asked for in tests/unit/core/saved.
    async with real_service(folder, memory_ratio=100.0, disk_ratio=100.0, pids_ratio=100.0) as running:
        yield running


@pytest.fixture(scope="module")
async def parent(service: Service) -> tuple[Sandbox, State]:
    asked = replace(
        BASE,
        name="root",
        env={"FIRST": "1", "BOTH": "1"},
        metadata={"a": "b", "sandlot.door": "x"},
        on_timeout=OnTimeout.PAUSE,
        idle_timeout_s=1000.0,
    )
    box = await make(service, asked)
    return box, await fill(box)


async def fork(service: Service, box: Sandbox, count: int = 1, who: Principal = OPERATOR, key: str | None = None, **asked: object) -> list[Sandbox]:
    return list(await service.core.forks.fork(box.id, who, NewFork(count, **asked), key=key))  # type: ignore[arg-type]


async def end(service: Service, *boxes: Sandbox) -> None:
    await asyncio.gather(*(service.sandboxes.kill(box.id, OPERATOR) for box in boxes))


def live(service: Service) -> set[str]:
    return {box.id for box in service.sandboxes.all(OPERATOR)}


async def test_children_are_what_their_parent_was_and_then_themselves(service: Service, parent: tuple[Sandbox, State], folder: Path) -> None:
    box, state = parent
    await cell(box, DRAWS)  # every generator has been used
    children = await fork(service, box, 3, env={"BOTH": "2"}, name="child", timeout_s=77.0)
    for each in (box, *children):
        await check(each, state)
    await until(lambda: saved(folder) == [])  # the image of a fork is nobody's, and gone once its children have started
    for number, child in enumerate(children, 1):
        assert (child.spec.parent, child.spec.restored, child.spec.snapshot, child.name) == (box.id, "memory", None, f"child-{number}")
        assert (child.spec.limits, child.spec.network, child.spec.on_timeout, child.idle_timeout_s) == (SMALL, Network.NONE, OnTimeout.PAUSE, 1000.0)
        assert dict(child.metadata) == {"a": "b"}, "the service's own words are not copied"
        assert (child.owner, child.spec.timeout_s) == (box.owner, 77.0)
        assert (await shell(child, "hostname; echo $FIRST $BOTH")).split() == [child.id, "1", "2"]
    draws = [json.loads(await cell(each, DRAWS)) for each in (box, *children)]
    for drawn in zip(*draws, strict=True):
        assert len(set(drawn)) == len(draws), drawn
    await cell(children[0], "word = 'changed'")
    await shell(children[0], f"echo changed > /workspace/word; kill {state.ticker}")
    for each in (box, *children[1:]):
        await check(each, state)
    await end(service, *children)


async def test_a_fork_of_one_that_rests_leaves_it_at_rest(service: Service, parent: tuple[Sandbox, State]) -> None:
    box, state = parent
    for rest, word in ((service.sandboxes.pause, Life.PAUSED), (service.sandboxes.hibernate, Life.HIBERNATED)):
        await rest(box.id, OPERATOR)
        (child,) = await fork(service, box)
        assert box.state is word
        await check(child, state)
        assert child.spec.timeout_s == box.spec.timeout_s
        await end(service, child)
        await check(box, state)


async def test_a_request_that_is_sent_again_makes_nothing_twice(service: Service, parent: tuple[Sandbox, State]) -> None:
    box = parent[0]
    first, again = await asyncio.gather(*(fork(service, box, 2, key="k") for _ in range(2)))
    assert [each.id for each in first] == [each.id for each in again]
    assert live(service) == {box.id, *(each.id for each in first)}
    with pytest.raises(ConflictError, match="Another request"):
        await fork(service, box, 3, key="k")
    await end(service, *first)
    assert [each.id for each in await fork(service, box, 2, key="k")] == [each.id for each in first], "also when they have ended"
    mortal = await make(service)
    made = await fork(service, mortal, key="last")
    await end(service, mortal)
    assert [each.id for each in await fork(service, mortal, key="last")] == [each.id for each in made], "also when their parent has"
    await end(service, *made)


async def test_what_an_earlier_service_half_made_is_ended_when_it_is_asked_for_again(service: Service, parent: tuple[Sandbox, State]) -> None:
    box = parent[0]
    made = await fork(service, box, 3, key="half")
    lost = await service.store.sandboxes.get(made[1].id)
    assert lost is not None
    await end(service, made[1])
    await until(lambda: made[1].id not in {each.id for each in service.sandboxes.all(OPERATOR)})
    await service.store.sandboxes.forget(ended_before=service.core.clock.now().replace(year=9999))  # as if it had never come to be told of
    again = await fork(service, box, 3, key="half")
    assert {each.id for each in made} & {each.id for each in again} == set()
    assert live(service) == {box.id, *(each.id for each in again)}
    await end(service, *again)


async def test_all_or_none(service: Service, parent: tuple[Sandbox, State], folder: Path) -> None:
    box, state = parent
    for count in (0, -1, 101):
        with pytest.raises(InvalidRequestError, match="count"):
            NewFork(count)
    quota = replace(OPERATOR, quota=Quota(sandboxes=3))
    with pytest.raises(LimitError) as over:
        await fork(service, box, 3, quota)
    assert dict(over.value.fields) == {"quota": "sandboxes", "limit": 3, "used": 1, "asked": 3, "retry_after_s": 5}
    with pytest.raises(UnavailableError) as full:
        await fork(service, box, 100)
    assert full.value.code is ErrorCode.BUSY
    assert live(service) == {box.id}
    await until(lambda: saved(folder) == [])
    await check(box, state)


async def test_a_child_that_cannot_start_takes_its_siblings_along(
    service: Service, parent: tuple[Sandbox, State], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, state = parent
    runs, told = service.sandboxes._register.runs, 0  # noqa: SLF001 - the last step that can fail

    async def failing(child: Sandbox) -> None:
        nonlocal told
        told += 1
        if told == 2:
            raise UnavailableError("The database cannot be reached.", code=ErrorCode.SERVICE_UNAVAILABLE)
        await runs(child)

    monkeypatch.setattr(service.sandboxes._register, "runs", failing)  # noqa: SLF001
    with pytest.raises(UnavailableError, match="database"):
        await fork(service, box, 3)
    monkeypatch.undo()
    assert live(service) == {box.id}
    await until(lambda: saved(folder) == [])
    await check(box, state)


async def test_a_client_that_goes_away_leaves_none(service: Service, parent: tuple[Sandbox, State], folder: Path) -> None:
    box, state = parent
    for conceived in (0, 1, 3):
        forking = asyncio.create_task(fork(service, box, 3))
        await until(lambda wanted=conceived: len(live(service)) >= 1 + wanted)  # type: ignore[misc]
        forking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await forking
        await until(lambda: live(service) == {box.id})
        await until(lambda: saved(folder) == [])
    await check(box, state)


async def test_a_container_says_why_it_cannot_be_forked(service: Service) -> None:
    box = await make(service, IN_CONTAINER)
    with pytest.raises(Unsupported, match="container"):
        await fork(service, box)
    await end(service, box)
    with pytest.raises(SandboxEndedError):
        await fork(service, box)


async def test_a_tree_grows_and_is_pruned(service: Service) -> None:
    forks, root = service.core.forks, await make(service)
    lone = await make(service)
    a, b, c = await fork(service, root, 3)
    (a1, a2), (b1,) = await fork(service, a, 2), await fork(service, b, 1, metadata={"set": "2"})
    (b11,) = await fork(service, b1)
    everybody = {each.id for each in (root, a, b, c, a1, a2, b1, b11)}
    for member in (root, b11, c):
        tree = await forks.tree(member.id, OPERATOR)
        assert (tree.root, tree.sandboxes[0].id, {each.id for each in tree.sandboxes}) == (root.id, root.id, everybody)
    assert [each.id for each in (await forks.tree(lone.id, OPERATOR)).sandboxes] == [lone.id]

    await end(service, b)  # what was forked from it lives on, and ends with its siblings all the same
    with pytest.raises(SandboxEndedError):
        await forks.promote(b.id, OPERATOR)
    assert (await forks.promote(a.id, OPERATOR, among={"set": "none"})).ended == ()
    promoted = await forks.promote(a.id, OPERATOR)
    assert (promoted.kept, set(promoted.ended), promoted.failed) == (a.id, {c.id, b1.id, b11.id}, {})
    assert (await forks.promote(a.id, OPERATOR)).ended == ()
    assert live(service) >= {root.id, lone.id, a.id, a1.id, a2.id}
    assert live(service) & {b.id, c.id, b1.id, b11.id} == set()
    tree = await forks.tree(a2.id, OPERATOR)
    assert {each.id: each.state for each in tree.sandboxes} == dict.fromkeys((root.id, a.id, a1.id, a2.id), Life.RUNNING) | dict.fromkeys(
        (b.id, c.id, b1.id, b11.id), Life.STOPPED
    ), "those that have ended are remembered"
    for stranger in (root, lone):
        with pytest.raises(ConflictError, match="nobody's fork"):
            await forks.promote(stranger.id, OPERATOR)
    with pytest.raises(NotFoundError):
        await forks.tree(root.id, ALICE)
    with pytest.raises(NotFoundError):
        await forks.promote(a.id, ALICE)
    await end(service, root, lone, a, a1, a2)


@pytest.mark.parametrize("generations", [pytest.param(3), pytest.param(10, marks=pytest.mark.soak)])
async def test_generations_of_forks_keep_everything(service: Service, generations: int, folder: Path) -> None:
    box = await make(service)
    state = await fill(box, size=50 * MIB)
    line = [box]
    for number in range(1, generations + 1):
        (child,) = await fork(service, line[-1])
        await check(child, state)
        assert await cell(child, f"path = [*globals().get('path', []), {number}]\nprint(path)") == f"{list(range(1, number + 1))}\n"
        await shell(child, f"cat /workspace/generations 2>/dev/null; echo {number} >> /workspace/generations")
        line.append(child)
        if len(line) > 3:  # the oldest go, and what came of them goes on
            await end(service, line[-4])
    assert (await shell(line[-1], "cat /workspace/generations")).split() == [str(number) for number in range(1, generations + 1)]
    await check(line[-1], state)
    assert (await service.core.forks.tree(line[-1].id, OPERATOR)).root == box.id
    await end(service, *line)
    await gone(folder, *saved(folder))


@pytest.mark.soak
async def test_many_children_at_once(service: Service, folder: Path) -> None:
    box = await make(service)
    await cell(box, "word = 'first'")
    children = await fork(service, box, 40)
    words = await asyncio.gather(*(cell(child, "import socket; print(word, socket.gethostname())") for child in children))
    assert [word.split() for word in words] == [["first", child.id] for child in children]
    await end(service, box, *children)
    await until(lambda: saved(folder) == [])


async def test_forks_of_one_that_is_being_woken_do_not_wait_for_each_other(service: Service) -> None:
    """Children that are prepared ahead, and a parent that needs a turn to be written, must not hold each other up."""
    box = await make(service)
    await cell(box, "word = 'first'")
    await service.sandboxes.hibernate(box.id, OPERATOR)
    *families, awake = await asyncio.gather(*(fork(service, box) for _ in range(5)), shell(box, "echo awake"))
    assert str(awake).strip() == "awake"
    children = [child for family in families for child in family]
    assert isinstance(children[0], Sandbox)
    assert [await cell(child, "print(word)") for child in children] == ["first\n"] * 5  # type: ignore[arg-type]
    await end(service, box, *children)  # type: ignore[arg-type]
