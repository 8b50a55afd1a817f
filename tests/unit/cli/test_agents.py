"""``sandlot agent``: create, list, talk to and delete agents."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.cli.main import dispatch
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.service import Bench, bench, client
from tests.unit.sdk.test_hosted_agents import think
from tests.unit.server.v1.test_agents import settings


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with scripted_model(think) as opened:
        yield opened


@pytest.fixture
async def at(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with bench(tmp_path / "data", settings(tmp_path, endpoint)) as here, client(here.service):
        monkeypatch.setenv("SANDLOT_URL", f"unix://{here.service.settings.socket}")
        yield here


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command in a thread, and return its exit status and what it printed, without the log of the service."""
    status = await asyncio.to_thread(dispatch, ["agent", *arguments])
    printed = capsys.readouterr()
    out, err = ("".join(line for line in text.splitlines(keepends=True) if "[info" not in line) for text in (printed.out, printed.err))
    return status, out, err


@pytest.mark.usefixtures("at")
async def test_agent_is_created_listed_talked_to_and_deleted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = await run(capsys, "create", "Analyst", "--model", "large", "--system", "Be short.")
    agent = out.split()[-1]
    assert (status, agent.startswith("agent_")) == (0, True)
    _, out, _ = await run(capsys, "ls")
    assert agent in out
    assert "large" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is 6 * 7?\n\nAnd again?\n"))
    status, out, err = await run(capsys, "chat", agent, "--template", "base")
    assert (status, [line for line in out.splitlines() if line.startswith("It")]) == (0, ["It is 42.", "It is 42."])
    assert "[run_code] print(6 * 7)" in err
    session = err.split("--session ")[1].split("`")[0]
    status, out, _ = await run(capsys, "chat", "--session", session, "--message", "Once more")
    assert (status, "It is 42." in out) == (0, True)
    assert (await run(capsys, "rm", agent))[0] == 0
    _, out, _ = await run(capsys, "ls", "--quiet")
    assert agent not in out
    assert (await run(capsys, "chat", "--session", session, "--message", "x"))[0] == 1


@pytest.mark.usefixtures("at")
async def test_chat_needs_an_agent_or_a_session(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = await run(capsys, "chat")
    assert (status, "--session" in err) == (2, True)
