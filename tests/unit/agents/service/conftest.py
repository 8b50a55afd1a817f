"""The runtime of agents on the in-memory service, with a scripted model behind the real packages of the vendors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sandlot.agents.service.limits import HostedRunLimits
from sandlot.agents.service.models import ModelEntry, ModelKind, Models
from sandlot.agents.service.runtime import AgentRuntime
from sandlot.agents.service.tool_servers import ToolServerEntry
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.agents import AgentConfig, AgentEventRecord, SessionEnvironment
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import Conversation, Say, Script, Step
from tests.support.service import Bench, bench

DEFAULT_LIMITS = HostedRunLimits()
TOOLS = ({"type": "mcp", "server": "code-exec"},)


@dataclass
class World:
    """A node, a runtime and the model that it calls.

    Args:
        at: The service.
        endpoint: The endpoint of the model.
        kind: API of the endpoint.
        limits: Limits of the runs.
        timeout: Seconds for a response of the model.
        servers: MCP servers of the operator.
    """

    at: Bench
    endpoint: Endpoint
    kind: ModelKind
    limits: HostedRunLimits = DEFAULT_LIMITS
    timeout: float = 60.0
    servers: Mapping[str, ToolServerEntry] = field(default_factory=dict)
    runtime: AgentRuntime = field(init=False)

    def __post_init__(self) -> None:
        self.runtime = self.start()

    def start(self) -> AgentRuntime:
        """Return a runtime, as another service would start it."""
        address = self.endpoint.address if self.kind is ModelKind.ANTHROPIC else self.endpoint.openai_url
        entry = ModelEntry("large", self.kind, address, "key-of-the-model", "upstream", 1.0, 5.0, timeout=self.timeout)
        return AgentRuntime(self.at.node, Models({"large": entry}), self.limits, servers=self.servers)

    async def session(self, principal: Principal = OPERATOR, tools: tuple[Any, ...] = TOOLS) -> str:
        """Create an agent and a session, and return the id of the session."""
        agent = await self.runtime.create(principal, AgentConfig("Analyst", "large", "Be short.", tools))
        return (await self.runtime.create_session(principal, agent.id, SessionEnvironment("base", 600))).id

    async def run(self, session: str, text: str = "What is 6 * 7?", principal: Principal = OPERATOR) -> list[AgentEventRecord]:
        """Send a message, wait until the run has ended, and return the events of the run."""
        before = (await self.at.node.agents.get_session(principal, session)).last_sequence
        begun = await self.runtime.send(principal, session, text)
        await self.runtime.wait(begun.id)
        return await self.events(session, after=before, principal=principal)

    async def events(self, session: str, *, after: int = 0, principal: Principal = OPERATOR) -> list[AgentEventRecord]:
        """Return the stored events after a number."""
        return list((await self.at.node.agents.events(principal, session, after=after, limit=1000)).items)

    async def until(self, session: str, kind: str) -> None:
        """Wait until an event of a type is stored."""
        stream = await self.at.node.agents.follow_events(OPERATOR, session)
        async for event in stream:
            if event.type == kind:
                break
        await stream.aclose()


MakeWorld = Callable[..., World]


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as here:
        yield here


@pytest.fixture(params=list(ModelKind))
def kind(request: pytest.FixtureRequest) -> ModelKind:
    """Each API of a model."""
    found: ModelKind = request.param
    return found


@pytest.fixture
async def make_world(at: Bench) -> AsyncIterator[MakeWorld]:
    """Function that starts an endpoint with a script and a runtime that uses it."""
    endpoints: list[Any] = []
    worlds: list[World] = []

    def make(script: Script, kind: ModelKind = ModelKind.OPENAI_CHAT, **options: Any) -> World:  # noqa: ANN401 - fields of the world
        endpoints.append(opened := scripted_model(script))
        worlds.append(made := World(at, opened.__enter__(), kind, **options))
        return made

    yield make
    for each in worlds:
        await each.runtime.aclose()
    for opened in endpoints:
        await asyncio.to_thread(opened.__exit__, None, None, None)


def in_turn(*steps: Step | list[Step]) -> Script:
    """Return a script that answers the requests with these steps in turn, and repeats the last one."""
    left = list(steps)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def answer_results(*calls: Step) -> Script:
    """Return a script that makes calls, one after the other, and then says their last result."""

    def think(conversation: Conversation) -> Step:
        done = len(conversation.results) % (len(calls) + 1)
        return calls[done] if done < len(calls) else Say(f"The answer is {conversation.results[-1].text}.")

    return think
