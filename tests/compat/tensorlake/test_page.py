"""The programs of Tensorlake's page on tools for agents, through its own client, against a real service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tensorlake.sandbox import SandboxClient

from tests.compat.tensorlake import programs
from tests.support.chatting import Call, Message, Say, model
from tests.support.tcpservice import TcpService

STATISTICS = "import statistics as s; n = [4, 8, 15, 16, 23, 42]; print(s.mean(n), s.median(n)); open('seen', 'w').write('kept')"
AGAIN = "import sys; print(open('seen').read(), 'n' in globals()); print('oh', file=sys.stderr); sys.exit(3)"
SEEN = "kept False\n[stderr]\noh\n[exit code: 3]"

ANTHROPIC = f"""
from types import SimpleNamespace as Object

def answer(messages, **_):
    told = sum(message["role"] == "assistant" for message in messages)
    if told == 2:
        last = [message["content"][0]["content"] for message in messages[1:] if message["role"] == "user"]
        return Object(stop_reason="end_turn", content=[Object(type="text", text="|".join(last))])
    code = [{STATISTICS!r}, {AGAIN!r}][told]
    return Object(stop_reason="tool_use", content=[Object(type="tool_use", id=str(told), input={{"code": code}})])

def Anthropic():
    return Object(messages=Object(create=answer))
"""

AGENTS = """
from types import SimpleNamespace as Object

def function_tool(function):
    return function

Agent = ModelSettings = Object

class Runner:
    @staticmethod
    def run_sync(agent, asked):
        return Object(final_output=agent.tools[0]("print(round((3.2 / 1) ** (1 / 5) - 1, 4))"))
"""


def run(tmp_path: Path, program: str, url: str, key: str, env: Mapping[str, str] | None = None, **modules: str) -> str:
    """Run a program of the page as its reader does: in a process of its own, with its address and key in the environment; what it printed."""
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    known = {**os.environ, "TENSORLAKE_API_URL": url, "TENSORLAKE_API_KEY": key, "PYTHONWARNINGS": "ignore", **(env or {})}
    done = subprocess.run([sys.executable, tmp_path / "program.py"], env=known, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_claude_program_of_the_page(tmp_path: Path, url: str, key: str) -> None:
    text = run(tmp_path, f"{programs.CLAUDE}\nprint('ANSWER', run_agent('...'))", url, key, anthropic=ANTHROPIC)
    assert text.partition("ANSWER ")[2].strip() == f"18 15.5|{SEEN}"


def test_openai_program_of_the_page(tmp_path: Path, url: str, key: str) -> None:
    def think(messages: Sequence[Message]) -> Say | Call:
        told = [message["content"] for message in messages if message["role"] == "tool"]
        return Say("|".join(told)) if len(told) == 2 else Call("run_code", {"code": [STATISTICS, AGAIN][len(told)]})

    with model(think) as thinking:
        env = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": thinking.url}
        text = run(tmp_path, f"{programs.OPENAI}\nprint('ANSWER', run_agent('...'))", url, key, env)
    assert text.partition("ANSWER ")[2].strip() == f"18 15.5|{SEEN}"


def test_agents_sdk_program_of_the_page(tmp_path: Path, url: str, key: str) -> None:
    assert run(tmp_path, programs.AGENTS, url, key, agents=AGENTS).strip() == "0.2619"


def test_sandbox_per_call_ends_with_the_call(client: SandboxClient) -> None:
    names = {"tl_client": client}
    exec(programs.NOT_ONE_PER_CALL, names)  # noqa: S102 - that is the test
    before = {each.sandbox_id for each in client.list()}
    assert names["run_code_tool"]("print(6 * 7)").stdout == "42"
    assert {each.sandbox_id for each in client.list()} == before


def test_snapshot_contains_installed_packages_and_more_can_be_installed(client: SandboxClient) -> None:
    names: dict[str, object] = {"tl_client": client}
    exec(programs.SNAPSHOT.replace('"pandas", "numpy", "matplotlib", "scipy"', '"cowsay"'), names)  # noqa: S102
    first, box = names["setup_sandbox"], names["sandbox"]
    client.delete(first.sandbox_id)  # type: ignore[attr-defined]
    try:
        assert box.run("python", ["-c", "import cowsay; print('cow' in cowsay.char_names)"]).stdout == "True"  # type: ignore[attr-defined]
        done = box.run("python", ["-c", programs.ON_DEMAND.replace("<package>", "humanize")])  # type: ignore[attr-defined]
        assert done.exit_code == 0, done.stderr
        assert box.run("python", ["-c", "import humanize; print(humanize.intcomma(1000))"]).stdout == "1,000"  # type: ignore[attr-defined]
    finally:
        client.delete(box.sandbox_id)  # type: ignore[attr-defined]
        client.delete_snapshot(names["snapshot"].snapshot_id)  # type: ignore[attr-defined]


def test_sandbox_is_claimed_from_a_pool(client: SandboxClient) -> None:
    names: dict[str, object] = {"tl_client": client}
    exec(programs.POOL.replace("warm_containers=3", "warm_containers=1"), names)  # noqa: S102
    box, pool = names["sandbox"], names["pool"]
    try:
        assert box.run("echo", ["claimed"]).stdout == "claimed"  # type: ignore[attr-defined]
        assert client.get(box.sandbox_id).pool_id == pool.pool_id  # type: ignore[attr-defined]
    finally:
        client.delete(box.sandbox_id)  # type: ignore[attr-defined]
        client.delete_pool(pool.pool_id)  # type: ignore[attr-defined]


def test_locked_sandbox_reaches_neither_internet_nor_host_ports(client: SandboxClient, service: TcpService) -> None:
    names: dict[str, object] = {"tl_client": client}
    exec(programs.LOCKED, names)  # noqa: S102
    box = names["sandbox"]
    try:
        tries = f"""
import socket
for address in ("1.1.1.1", 53), ("127.0.0.1", {service.port}), ("169.254.169.254", 80), ("example.org", 80):
    try:
        socket.create_connection(address, 10).recv(1)
    except ConnectionError as error:  # refused, or accepted by the guest and reset
        print("no")
    else:
        print(address)
"""
        assert box.run("python", ["-c", tries]).stdout == "no\nno\nno\nno"  # type: ignore[attr-defined]
        assert box.run("pip", ["download", "cowsay", "--retries", "0"], working_dir="/tmp").exit_code != 0  # type: ignore[attr-defined]
        assert client.get(box.sandbox_id).network_policy.allow_internet_access is False  # type: ignore[attr-defined]
    finally:
        client.delete(box.sandbox_id)  # type: ignore[attr-defined]
