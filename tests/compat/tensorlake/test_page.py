"""The programs of Tensorlake's page on tools for agents, through its own client, against a real service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tensorlake.sandbox import SandboxClient

from tests.compat.tensorlake import programs
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step
from tests.support.tcpservice import TcpService

STATISTICS = """
import statistics
numbers = [4, 8, 15, 16, 23, 42]
print(statistics.mean(numbers), statistics.median(numbers), round(statistics.stdev(numbers), 2))
open("seen", "w").write("kept")
"""
HISTOGRAM = """
import sys
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.hist([4, 8, 15, 16, 23, 42])
plt.savefig("histogram.png")
print(open("histogram.png", "rb").read(4), open("seen").read(), "numbers" in globals())
print("It looks skewed.", file=sys.stderr)
sys.exit(3)
"""
MONTHS = """
import datetime
import random
random.seed(42)
margins = {}
for month in range(1, 13):
    revenue, cost = random.randint(80, 120), random.randint(40, 70)
    name = datetime.date(2025, month, 1).strftime("%B")
    margins[name] = (revenue - cost) / revenue
    print(f"{name:10} {revenue - cost:4} {margins[name]:6.1%}")
print("best:", max(margins, key=margins.get), "worst:", min(margins, key=margins.get))
"""
GROWTH = "print(f'{(3.2 / 1) ** (1 / 5) - 1:.2%}')"


def run(tmp_path: Path, program: str, url: str, key: str, env: Mapping[str, str]) -> str:
    """Run a program of the page as its reader does: in its own process, with addresses and keys in the environment. Returns what it printed."""
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    known = {**os.environ, "TENSORLAKE_API_URL": url, "TENSORLAKE_API_KEY": key, "PYTHONWARNINGS": "ignore", **env}
    done = subprocess.run([sys.executable, tmp_path / "program.py"], env=known, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_claude_program_of_the_page(tmp_path: Path, url: str, key: str) -> None:
    def script(conversation: Conversation) -> Step:
        assert conversation.system.startswith("You are a data analysis assistant.")
        results = [result.text for result in conversation.results]
        if not results:
            return Call("run_code", {"code": STATISTICS})
        if len(results) == 1:
            return Call("run_code", {"code": HISTOGRAM})
        return Say(f"Mean, median and deviation: {results[0].strip()}. The plot: {results[1]}")

    with scripted_model(script) as model:
        text = run(tmp_path, programs.CLAUDE, url, key, model.env)
    plot = "b'\\x89PNG' kept False\n[stderr]\nIt looks skewed.\n[exit code: 3]"
    assert text.partition("=== Final answer ===\n")[2].strip() == f"Mean, median and deviation: 18 15.5 13.49. The plot: {plot}"


def test_openai_program_of_the_page(tmp_path: Path, url: str, key: str) -> None:
    def script(conversation: Conversation) -> Step:
        if not conversation.results:
            return Call("run_code", {"code": MONTHS})
        return Say(conversation.results[0].text)

    with scripted_model(script) as model:
        text = run(tmp_path, programs.OPENAI, url, key, model.env)
    expected = subprocess.run([sys.executable, "-c", MONTHS], capture_output=True, text=True, check=True).stdout
    assert text.partition("=== Final answer ===\n")[2].strip() == expected.strip()


def test_agents_sdk_program_of_the_page(tmp_path: Path, url: str, key: str) -> None:
    def script(conversation: Conversation) -> Step:
        if not conversation.results:
            assert conversation.body["tool_choice"] == "required"
            return Call("run_code", {"code": GROWTH})
        return Say(f"The growth rate is {conversation.results[0].text.strip()}.")

    with scripted_model(script) as model:
        assert run(tmp_path, programs.AGENTS, url, key, model.env) == "The growth rate is 26.19%.\n"


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
