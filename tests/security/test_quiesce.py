"""Promise: a guest that is asked to come to rest (QUIESCE) and does something else loses its link, or its host's patience, and nothing else.

Rest is what a checkpoint begins with, so it is asked of the guest by the host, over the link of a real sandbox whose guest is
an impostor. What is waited for is bounded by the host; what comes instead of an acknowledgement is judged by the laws of the link.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sandlot.link.payload import INTERPRETER_ARGV
from sandlot.link.types import LinkClosedReason
from sandlot.model.errors import SandboxEndedError, TimeoutExceededError, UnavailableError
from sandlot.model.ids import new_node_id
from sandlot.model.specs import ProcessSpec, RootFs
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness
from tests.support.localservice import TEMPLATE
from tests.support.roots import GUEST, Roots, replace
from tests.support.traces import NOTHING, settle, traces

PATIENCE_S = 0.3
"""Given to guests that never come to rest."""

SILENT: Mapping[str, str] = {
    "never": "quiesces(lambda guest: None)",
    "half of it": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0)[:7]))",
}
"""What leaves the host waiting."""

CRIMES: Mapping[str, str] = {
    "with something in it": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0, b'x')))",
    "and not the last word": "quiesces(lambda guest: say(frame(frames.QUIESCED, 0) + frame(frames.DATA, 1, b'x', 1)))",
    "noise": "quiesces(lambda guest: say(os.urandom(64)))",
    "twice": "quiesces(lambda guest: (say(frame(frames.QUIESCED, 0)), guest.loop.call_later(0.3, lambda: say(frame(frames.QUIESCED, 0)))))",
}
"""What ends the link, at once or later."""

Attack = Callable[[ConnectedSandbox], Awaitable[None]]


async def test_quiesce_that_is_not_confirmed_times_out(hosts: Hosts) -> None:
    async def attack(liar: ConnectedSandbox) -> None:
        with pytest.raises(TimeoutExceededError) as refused:
            await liar.link.quiesce(PATIENCE_S)
        assert refused.value.hint
        for call in (liar.link.info, liar.link.quiesce):
            with pytest.raises(UnavailableError):
                await call()
        assert not liar.link.closed, "the host decides what becomes of it"

    await hosts.try_all(SILENT, attack)


async def test_false_quiesce_ends_the_link(hosts: Hosts) -> None:
    async def attack(liar: ConnectedSandbox) -> None:
        with contextlib.suppress(SandboxEndedError):  # the lie may come in the same breath, or a moment after it was believed
            await liar.link.quiesce()
        assert (await liar.link.wait_closed()).reason is LinkClosedReason.VIOLATION
        with pytest.raises(SandboxEndedError):
            await liar.link.info()

    await hosts.try_all(CRIMES, attack)


class Hosts:
    """A driver, one template with a hostile guest, and an honest sandbox that must notice nothing.

    Args:
        isolation: Name of the driver.
        roots: The usual template; one with a hostile guest is added.
        folder: State directory.
    """

    def __init__(self, isolation: str, roots: Roots, folder: Path) -> None:
        self._node = new_node_id(secrets.token_bytes)
        (folder / "node").write_text(self._node)
        self._isolation = isolation
        self._roots = roots
        if not (roots.folder / "restless").exists():
            roots.add_impostor("restless")
        self._folder = folder

    async def try_all(self, misdeeds: Mapping[str, str], attack: Attack) -> None:
        """Boot one sandbox per misdeed, and attack the host from all of them, beside an honest sandbox."""
        honest = self._harness(TEMPLATE)
        driver = honest.new_driver()

        async def one(misdeed: str) -> None:
            # The guest reads what it is to do before it greets, so each has its file in place only while it boots.
            replace(self._roots.folder / "restless" / GUEST / "before.py", misdeed)
            async with self._harness("restless").sandbox(driver) as liar:
                # There is always something under way.
                await (await liar.link.processes.start(ProcessSpec((*INTERPRETER_ARGV, "-c", "import time; time.sleep(1000)"), cwd="/"))).started()
                await attack(liar)

        async with honest.sandbox(driver) as bystander:
            for name, misdeed in misdeeds.items():
                try:
                    await one(misdeed)
                except BaseException as failure:
                    failure.add_note(f"misdeed: {name}")
                    raise
            assert (await bystander.run("echo", "still here")).stdout == "still here\n"
            await bystander.link.quiesce()
            assert bystander.link.asleep, "an honest guest comes to rest beside them"
        settle(lambda: traces(self._folder), NOTHING)

    def _harness(self, root: str) -> DriverHarness:
        return DriverHarness(self._isolation, RootFs(root, (self._roots.folder / root).resolve()), self._node, self._folder)


@pytest.fixture
def hosts(isolation: str, roots: Roots) -> Iterator[Hosts]:
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield Hosts(isolation, roots, folder)
    shutil.rmtree(folder)
