"""The service is killed during runs of agents. No event is lost or doubled, no run stays active, and the sandbox keeps its variables."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.model.errors import SandlotError
from sandlot.sdk import Client
from sandlot.sdk.models.agents import AgentEventInfo
from tests.support.localservice import LocalService
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Script, Step
from tests.support.traces import NOTHING, settle

pytestmark = pytest.mark.slow

MODELS = {"claude": ("anthropic", ""), "gpt": ("openai-chat", "/v1")}
COUNT = "n = globals().get('n', 0) + 1\nprint('n is', n)\nimport time; time.sleep({pause:.3f})"
MOMENT_S = 1.0
"""A kill comes at a random moment within this time after each session has a run."""


@dataclass
class Talk:
    """A session that gets messages until the service is killed, while a follower reads its events over all restarts.

    Args:
        sender: Client that sends messages.
        follower: Client that follows the events.
        session: Id of the session.
        tried: Messages that were sent.
        accepted: Messages that the service has accepted.
        followed: Events in the order in which the follower got them.
        is_active: Set once the service has accepted a message of this round.
        is_over: Set when the follower shall end.
        following: Thread of the follower.
        counted: Last count that the sandbox had printed at the last check.
    """

    sender: Client
    follower: Client
    session: str
    tried: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    followed: list[AgentEventInfo] = field(default_factory=list)
    is_active: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    following: threading.Thread = field(init=False)
    counted: int = 0

    def __post_init__(self) -> None:
        self.following = threading.Thread(target=self.follow)

    def open_sandbox(self) -> None:
        """Let a first run end, in which the sandbox is created."""
        self.tried.append("first message")
        self.accepted.append("first message")
        self.sender.agent_sessions.send(self.session, "first message")
        for _ in self.sender.agent_sessions.follow(self.session):
            pass

    def send(self) -> None:
        """Send messages, one after the other, until a request fails because the service was killed."""
        try:
            while True:
                self.tried.append(f"message {len(self.tried)}")
                self.sender.agent_sessions.send(self.session, self.tried[-1])
                self.accepted.append(self.tried[-1])
                self.is_active.set()
                while self.sender.agent_sessions.get(self.session).status == "running":
                    time.sleep(0.01)
        except SandlotError:
            return

    def follow(self) -> None:
        """Follow the events of the session until it is deleted, and continue where the last stream broke."""
        while not self.is_over.is_set():
            after = self.followed[-1].sequence if self.followed else 0
            try:
                for event in self.follower.agent_sessions.follow(self.session, after=after, until_idle=False):
                    self.followed.append(event)
            except SandlotError:
                self.is_over.wait(0.05)

    def end(self) -> None:
        """Wait until the follower has got all events, and delete the session."""
        try:
            settle(lambda: self.followed, self.sender.agent_sessions.events(self.session))
        finally:
            self.is_over.set()
            self.sender.agent_sessions.delete(self.session)
            self.following.join(60)
            self.sender.close()
            self.follower.close()
        assert not self.following.is_alive()

    def check(self) -> None:
        """Check the stored events after a restart, before the next message."""
        session = self.sender.agent_sessions.get(self.session)
        events = self.sender.agent_sessions.events(self.session)
        assert session.status == "idle"
        assert [event.sequence for event in events] == list(range(1, session.last_event + 1))
        assert len({event.id for event in events}) == len(events)
        stored = [event.text for event in events if event.type == "user.message"]
        assert len(set(stored)) == len(stored)
        assert set(self.accepted) <= set(stored) <= set(self.tried)
        of_type = [event.type for event in events]
        assert of_type.count("user.message") == of_type.count("session.status_running") == of_type.count("session.status_idle")
        assert of_type[-1] == "session.status_idle"
        uses = [event.data["tool_use_id"] for event in events if event.type == "agent.tool_use"]
        results = [event.data["tool_use_id"] for event in events if event.type == "agent.tool_result"]
        assert sorted(results) == sorted(uses)
        assert len(set(uses)) == len(uses)
        self.check_sandbox(session.sandbox, events)

    def check_sandbox(self, sandbox: str | None, events: list[AgentEventInfo]) -> None:
        """Check that each call ran at most once, in one sandbox that has counted them all."""
        counts = [int(found[1]) for event in events if event.type == "agent.tool_result" and (found := re.search(r"n is (\d+)", event.text))]
        if not any(event.type == "agent.tool_result" for event in events):
            return
        assert counts == sorted(set(counts))
        mine = [each for each in self.sender.sandboxes.list() if each.metadata.get("sandlot.agent_session") == self.session]
        assert [each.id for each in mine] == ([] if sandbox is None else [sandbox])
        if counts:
            self.counted = counts[-1]
            assert sandbox is not None
            count = int(Sandbox.connect(sandbox, client=self.sender).run_code("globals().get('n', 0)").text or 0)
            assert counts[-1] <= count <= sum(event.type == "agent.tool_use" for event in events)


def think(source: random.Random) -> Script:
    """Return a script that calls tools, alone or in pairs, and answers at random."""

    def answer(conversation: Conversation) -> Step | list[Step]:
        time.sleep(source.uniform(0, 0.1))
        if conversation.results and source.random() < 0.2:
            return Say("That is all.")
        return [Call("run_code", {"code": COUNT.format(pause=source.uniform(0, 0.1))}) for _ in range(source.choice((1, 1, 2)))]

    return answer


@pytest.fixture
def service() -> Iterator[LocalService]:
    # Not pytest's folder, whose path may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    made = LocalService(folder, {"SANDLOT_AGENT_MODELS": str(folder / "models.toml")})
    try:
        yield made
    finally:
        try:
            made.end(signal.SIGKILL)
            made.start()
            for left in made.client.sandboxes.list():  # of a test that failed
                made.client.sandboxes.kill(left.id)
            settle(made.traces, NOTHING)
        finally:
            made.end()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, id="once", marks=pytest.mark.timeout(300)),
        pytest.param(20, id="20 times", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_killed_runs_lose_and_double_nothing(service: LocalService, kills: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("SANDLOT_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    source = random.Random(seed)
    with capsys.disabled():
        print(f"\nseed {seed}")
    with scripted_model(think(random.Random(seed))) as endpoint:
        tables = [
            f'[models.{name}]\nkind = "{kind}"\nbase_url = "{endpoint.address}{path}"\napi_key = "none"\n' for name, (kind, path) in MODELS.items()
        ]
        (service.data_dir / "models.toml").write_text("".join(tables), encoding="utf-8")
        service.start()
        with ExitStack() as talking:
            talks = [talking.enter_context(talk_with(service, model)) for model in MODELS]
            for talk in talks:
                talk.open_sandbox()
            for _ in range(kills):
                with talk_with(service, source.choice(list(MODELS))) as new:  # whose sandbox does not exist yet
                    strike(service, [*talks, new], source.uniform(0, MOMENT_S))
                    for talk in [*talks, new]:
                        talk.check()
            for talk in talks:
                assert talk.counted, [event.text for event in talk.followed if event.type == "agent.tool_result"][:3]
        assert endpoint.refused == []
        assert service.client.sandboxes.list() == []
        settle(service.traces, NOTHING)


@contextmanager
def talk_with(service: LocalService, model: str) -> Iterator[Talk]:
    """Create an agent and a session, which is deleted at the end."""
    sender, follower = (Client(data_dir=service.data_dir, autostart=False) for _ in range(2))
    agent = sender.agents.create("Counter", model)
    talk = Talk(sender, follower, sender.agent_sessions.create(agent.id, template="base", timeout=600).id)
    talk.following.start()
    try:
        yield talk
    finally:
        talk.end()


def strike(service: LocalService, talks: list[Talk], after_s: float) -> None:
    """Send messages to each session, kill the service some time after each has a run, and start it again."""
    senders = [threading.Thread(target=talk.send) for talk in talks]
    for talk, thread in zip(talks, senders, strict=True):
        talk.is_active.clear()
        thread.start()
    for talk in talks:
        assert talk.is_active.wait(60)
    time.sleep(after_s)
    service.end(signal.SIGKILL)
    for thread in senders:
        thread.join(60)
    service.start()
