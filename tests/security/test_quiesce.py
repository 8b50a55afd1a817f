"""Promise: a guest that is asked to come to rest (QUIESCE) and does something else loses its link, or its host's patience, and nothing else.

Rest is what a checkpoint begins with, so it is asked of the guest by the host, over the link of a real sandbox whose guest is
an impostor. What is waited for is bounded by the host; what comes instead of an acknowledgement is judged by the laws of the link.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from sandlot.link.types import LostReason
from sandlot.model.errors import SandboxEndedError, SandlotError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import new_node_id
from sandlot.model.specs import ProcessSpec, RootFs
from sandlot.testing.bench import Bench, Subject
from tests.support.roots import Roots, own_roots
from tests.support.traces import NOTHING, settle, traces

PATIENCE_S = 1.0
"""Given to guests that never come to rest."""

SILENT: Mapping[str, str] = {
    "never": "quiesces(lambda guest: None)",
    "half of it": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0)[:7]))",
    "goes on working": "quiesces(lambda guest: say(frame(frames.DATA, 1, b'x', 1) * 10))",
}
"""What leaves the host waiting."""

CRIMES: Mapping[str, str] = {
    "with something in it": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0, b'x')))",
    "of one stream": "quiesces(lambda guest: say(frame(frames.QUIESCED, 1)))",
    "and not the last word": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0) + frame(frames.DATA, 1, b'x', 1)))",
    "twice at once": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0) * 2))",
    "noise": "quiesces(lambda guest: say(os.urandom(64)))",
    "a greeting of nobody": "quiesces(lambda guest: say(greeting.welcome(bytes(16), 1, asleep=True)))",
    "streams without end": (
        "quiesces(lambda guest: say(b''.join(frame(frames.OPEN, n, values.encode({'service': 'x', 'args': {}})) for n in range(2, 4000, 2))))"
    ),
}
"""What ends the link at once."""

LATER = "quiesces(lambda guest: (say(frame(frames.QUIESCED, 0)), guest.loop.after(0.3, lambda: say(frame(frames.QUIESCED, 0)))))"


@pytest.fixture(scope="module")
def roots() -> Iterator[Roots]:
    with own_roots() as made:
        made.add("honest", made.image)
        for number, misdeed in enumerate((*SILENT.values(), *CRIMES.values(), LATER)):
            made.add_impostor(f"impostor-{number}", misdeed)
        yield made


@pytest.fixture
async def inside(isolation: str, roots: Roots, request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """A sandbox with the guest that the test's parameter names; beside it an honest one that must notice nothing."""
    misdeeds = (*SILENT.values(), *CRIMES.values(), LATER)
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    node = new_node_id(secrets.token_bytes)
    (folder / "node").write_text(node)

    def bench(root: str) -> Bench:
        return Bench(isolation, RootFs(roots.folder / root, root), node, folder)

    try:
        driver = bench("honest").start()
        hostile = bench(f"impostor-{misdeeds.index(request.param)}")
        async with bench("honest").sandbox(driver) as honest, hostile.sandbox(driver) as liar:
            yield liar
            assert (await honest.run("echo", "still here")).stdout == "still here\n"
            await honest.link.quiesce()
            assert honest.link.asleep, "an honest guest comes to rest beside it"
        settle(lambda: traces(folder), NOTHING)
    finally:
        shutil.rmtree(folder)


async def _busy(liar: Subject) -> None:
    """Something is under way, as there always is."""
    await (await liar.link.start(ProcessSpec(("sleep", "1000"), cwd="/"))).started()


@pytest.mark.parametrize("inside", SILENT.values(), ids=SILENT.keys(), indirect=True)
async def test_rest_that_does_not_come_is_given_up(inside: Subject) -> None:
    await _busy(inside)
    with pytest.raises(TimeoutExceededError) as refused:
        await inside.link.quiesce(PATIENCE_S)
    assert refused.value.hint
    for call in (inside.link.info, inside.link.quiesce):
        with pytest.raises(UnavailableError):
            await call()
    assert not inside.link.closed, "it is the host that decides what becomes of it"


@pytest.mark.parametrize("inside", CRIMES.values(), ids=CRIMES.keys(), indirect=True)
async def test_rest_that_is_a_lie_ends_the_link(inside: Subject) -> None:
    await _busy(inside)
    with contextlib.suppress(SandboxEndedError):  # it may lie in the same breath, or a moment after it was believed
        await inside.link.quiesce()
    assert (await inside.link.wait_lost()).reason is LostReason.VIOLATION
    with pytest.raises(SandboxEndedError):
        await inside.link.info()


@pytest.mark.parametrize("inside", [LATER], ids=["later"], indirect=True)
async def test_a_second_rest_ends_the_link_whenever_it_comes(inside: Subject) -> None:
    await inside.link.quiesce()
    assert (await inside.link.wait_lost()).reason is LostReason.VIOLATION
    with pytest.raises(SandlotError):
        await inside.link.info()
