"""E2B's own client with ``api_url`` at this door, as Sandbase's pages show it: every call of its control plane that is there, and the inside at /e2b.

It is the package from PyPI, as it is. Sandboxes are real, and reached over TCP with a key.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TypedDict

import pytest
import requests
from e2b import Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import SandboxException

from tests.compat.sandbase.programs import CONNECT
from tests.support.tcpservice import TcpService

HOUR = timedelta(hours=1)


class Options(TypedDict):
    """Where the client finds the service."""

    api_key: str
    api_url: str
    sandbox_url: str


@pytest.fixture(scope="module")
def options(service: TcpService) -> Options:
    return {"api_key": service.key("e2b-client"), "api_url": f"{service.url}/sandbase", "sandbox_url": f"{service.url}/e2b"}


@pytest.fixture(scope="module")
def sandbox(options: Options) -> Iterator[Sandbox]:
    """One that tests share."""
    made = Sandbox.create(template="code_interpreter", timeout=300, metadata={"for": "tests"}, envs={"MY_VAR": "mine"}, **options)
    yield made
    made.kill()


def test_sandbox_is_created_inspected_and_used(sandbox: Sandbox, options: Options) -> None:
    sandbox.set_timeout(300)  # another test may have moved the end
    info = sandbox.get_info()
    assert (info.template_id, info.state, info.metadata) == ("code_interpreter", SandboxState.RUNNING, {"for": "tests"})
    assert (info.cpu_count, info.memory_mb, info.envd_version) == (1, 1024, "0.6.4")
    assert timedelta(minutes=4) < info.end_at - datetime.now(UTC) <= timedelta(minutes=5)
    assert sandbox.commands.run("echo $MY_VAR $E2B_SANDBOX").stdout == "mine true\n"
    sandbox.files.write("/workspace/hello", "there")
    base, headers = options["api_url"], {"Authorization": f"Bearer {options['api_key']}"}
    read = requests.get(f"{base}/sandboxes/{sandbox.sandbox_id}/files", params={"path": "/workspace/hello"}, headers=headers, timeout=60)
    assert read.text == "there", "both doors know it"
    assert sandbox.is_running()


def test_connect_program_of_the_documentation(sandbox: Sandbox, options: Options) -> None:
    env = {"E2B_API_KEY": options["api_key"], "E2B_SANDBOX_URL": options["sandbox_url"], "NO_PROXY": "127.0.0.1"}
    assert 'api_url="https://api.sandbase.ai"' in CONNECT
    text = CONNECT.replace("https://api.sandbase.ai", options["api_url"])
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, f'Running in {sandbox.sandbox_id} as "user"\n'), done.stderr


def test_sandboxes_are_listed_in_filtered_pages(sandbox: Sandbox, options: Options) -> None:
    other = Sandbox.create(template="base", metadata={"for": "a list & more"}, **options)
    pages = Sandbox.list(limit=1, **options)
    listed = []
    while pages.has_next:
        (one,) = pages.next_items()
        listed.append(one.sandbox_id)
    assert listed == [other.sandbox_id, sandbox.sandbox_id]

    def found(metadata: dict[str, str] | None = None, state: list[SandboxState] | None = None) -> list[str]:
        return [each.sandbox_id for each in Sandbox.list(query=SandboxQuery(metadata=metadata, state=state), **options).next_items()]

    assert found(metadata={"for": "a list & more"}) == [other.sandbox_id]
    assert found(metadata={"for": "nobody"}) == []
    other.pause()
    assert found(state=[SandboxState.PAUSED]) == [other.sandbox_id]
    assert found(state=[SandboxState.RUNNING]) == [sandbox.sandbox_id]
    assert found(state=[SandboxState.RUNNING, SandboxState.PAUSED]) == [other.sandbox_id, sandbox.sandbox_id]
    other.kill()
    assert found() == [sandbox.sandbox_id]


def test_connect_never_shortens_the_timeout(sandbox: Sandbox, options: Options) -> None:
    sandbox.set_timeout(1800)
    until = sandbox.get_info().end_at
    assert timedelta(minutes=29) < until - datetime.now(UTC) <= timedelta(minutes=30)
    assert Sandbox.connect(sandbox.sandbox_id, timeout=60, **options).get_info().end_at == until
    longer = Sandbox.connect(sandbox.sandbox_id, timeout=3000, **options)
    assert longer.get_info().end_at > until
    assert longer.commands.run("echo connected").stdout == "connected\n"


def test_paused_processes_continue_after_connect(options: Options) -> None:
    made = Sandbox.create(template="base", **options)
    running = made.commands.run("sleep 1000", background=True)
    assert made.pause()
    assert made.get_info().state == SandboxState.PAUSED
    assert not made.pause(), "it is paused already"
    again = Sandbox.connect(made.sandbox_id, timeout=900, **options)
    assert again.get_info().state == SandboxState.RUNNING
    assert timedelta(minutes=14) < again.get_info().end_at - datetime.now(UTC) <= timedelta(minutes=15)
    assert running.pid in [each.pid for each in again.commands.list()]
    with pytest.raises(SandboxException, match="memory"):
        again.pause(keep_memory=False)
    assert again.kill()
    assert not again.kill()


def test_metrics_are_a_list_filtered_by_time(sandbox: Sandbox, options: Options) -> None:
    (now,) = sandbox.get_metrics()
    assert (now.cpu_count, now.mem_total) == (1, 1 << 30)
    assert 0 < now.mem_used < now.mem_total
    assert 0 < now.disk_used < now.disk_total
    assert abs(now.timestamp - datetime.now(UTC)) < HOUR
    at = datetime.now(UTC)
    assert sandbox.get_metrics(start=at + HOUR) == []
    assert sandbox.get_metrics(end=at - HOUR) == []
    assert len(sandbox.get_metrics(start=at - HOUR, end=at + HOUR)) == 1
    url = f"{options['api_url']}/sandboxes/{sandbox.sandbox_id}/metrics"
    for headers in ({"Authorization": f"Bearer {options['api_key']}"}, {"X-API-Key": options["api_key"]}):
        assert requests.get(url, headers=headers, timeout=60).json()["mem_total_mib"] == 1024, "to anybody else it is Sandbase's"
        assert requests.get(url, headers=headers, params={"start": 1}, timeout=60).status_code == 400


def test_network_can_be_closed_and_unsupported_options_are_refused(options: Options) -> None:
    closed = Sandbox.create(template="base", allow_internet_access=False, **options)
    assert closed.commands.run("pip download --no-deps -d /tmp/x six || echo refused").stdout.endswith("refused\n")
    with pytest.raises(SandboxException, match="e2b"):
        closed.create_snapshot()
    closed.kill()
    Sandbox.create(template="base", allow_internet_access=True, **options).kill()
    with pytest.raises(SandboxException, match="unknown template: opencode"):
        Sandbox.create(template="opencode", **options)
    with pytest.raises(SandboxException, match="autoResume"):
        Sandbox.create(template="base", lifecycle={"on_timeout": "pause", "auto_resume": True}, **options)
