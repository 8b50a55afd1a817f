"""Addresses of ports that the vendors' clients compute: they lead through a proxy with TLS to a program in the sandbox.

Clients get nothing but environment variables, and names that resolve.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox as E2bSandbox
from pandastack import Client as PandastackClient
from tensorlake.sandbox import SandboxClient as TensorlakeClient

from tests.support.environments import create_environment
from tests.support.preview_service import DOMAIN, PreviewService, preview_service

PROGRAMS = Path(__file__).parent / "e2b" / "programs"
PORT = 3000
SERVER = f"mkdir /tmp/page && echo hello > /tmp/page/note.txt && cd /tmp/page && exec python3 -m http.server {PORT}"
CODE_INTERPRETER = {"value": "42", "kept": ["42\n"], "error": "ZeroDivisionError", "context": "/tmp", "command": "hi\n", "host": True}


@pytest.fixture(scope="module")
def previews(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreviewService]:
    with preview_service(tmp_path_factory.mktemp("certificate")) as running:
        yield running


@pytest.fixture(scope="module")
def public_key(previews: PreviewService) -> str:
    return previews.service.key("public", "--public-ports")


@pytest.fixture(scope="module")
def private_key(previews: PreviewService) -> str:
    return previews.service.key("private")


def e2b_sandbox(previews: PreviewService, key: str, prefix: str = "/e2b") -> E2bSandbox:
    """Return a sandbox of E2B's client with a server on the port."""
    url = previews.service.url
    made = E2bSandbox.create("base", timeout=300, api_key=key, api_url=f"{url}{prefix}", sandbox_url=f"{url}/e2b")
    made.commands.run(SERVER, background=True)
    return made


@pytest.mark.smoke
def test_host_of_e2bs_client_opens_a_public_port(previews: PreviewService, public_key: str) -> None:
    sandbox = e2b_sandbox(previews, public_key)
    assert sandbox.get_host(PORT) == f"{PORT}-{sandbox.sandbox_id}.{DOMAIN}"
    assert previews.get(f"https://{sandbox.get_host(PORT)}/note.txt").text == "hello\n"
    sandbox.kill()


def test_host_of_e2bs_client_opens_a_private_port_with_the_traffic_token(previews: PreviewService, private_key: str) -> None:
    sandbox = e2b_sandbox(previews, private_key)
    url = f"https://{sandbox.get_host(PORT)}/note.txt"
    assert previews.get(url).status_code == 401
    assert previews.get(url, {"e2b-traffic-access-token": "other"}).status_code == 401
    assert sandbox.traffic_access_token is not None
    assert previews.get(url, {"e2b-traffic-access-token": sandbox.traffic_access_token}).text == "hello\n"
    sandbox.kill()


def test_host_of_e2bs_client_at_the_api_of_sandbase_opens(previews: PreviewService, private_key: str) -> None:
    sandbox = e2b_sandbox(previews, private_key, "/sandbase")
    url = f"https://{sandbox.get_host(PORT)}/note.txt"
    assert previews.get(url).status_code == 401
    assert sandbox.traffic_access_token is not None
    assert previews.get(url, {"e2b-traffic-access-token": sandbox.traffic_access_token}).text == "hello\n"
    sandbox.kill()


def test_preview_url_of_pandastacks_client_opens(previews: PreviewService, public_key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PANDASTACK_PREVIEW_HOST", DOMAIN)
    client = PandastackClient(api_url=f"{previews.service.url}/pandastack", api_key=public_key, max_create_retry_seconds=0)
    with client.sandboxes.create(template="base") as sandbox:
        sandbox.exec(f"({SERVER}) >/dev/null 2>&1 &")
        assert previews.get(f"{sandbox.preview_url(PORT)}/note.txt").text == "hello\n"
        assert sandbox.preview_urls() == {PORT: sandbox.preview_url(PORT)}


def test_url_for_port_of_tensorlakes_client_opens_a_port_without_authentication(previews: PreviewService, public_key: str) -> None:
    with (
        pytest.deprecated_call(),
        TensorlakeClient(api_url=f"{previews.service.url}/tensorlake", api_key=public_key) as client,
        client.create_and_connect(memory_mb=256, exposed_ports=[PORT], allow_unauthenticated_access=True) as sandbox,
    ):
        sandbox.start_process("sh", ["-c", SERVER])
        url = client.get(sandbox.sandbox_id).url_for_port(PORT)
        assert url == f"https://{PORT}-{sandbox.sandbox_id}.{DOMAIN}"
        assert previews.get(f"{url}/note.txt").text == "hello\n"
        assert client.get_port_access(sandbox.sandbox_id).ingress_endpoint == f"https://{DOMAIN}"
        client.update_sandbox(sandbox.sandbox_id, allow_unauthenticated_access=False)
        assert previews.get(f"{url}/note.txt").status_code == 401


def run(previews: PreviewService, python: Path, program: str, key: str) -> dict[str, Any]:
    """Return what a program printed."""
    url = f"{previews.service.url}/e2b"
    env = previews.environ(E2B_API_KEY=key, E2B_API_URL=url, E2B_SANDBOX_URL=url, OTEL_SDK_DISABLED="true")
    done = subprocess.run([python, PROGRAMS / program], env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.soak
@pytest.mark.parametrize(
    "environment, program, expected",
    [
        ("e2b-code-interpreter-2.8", "code_interpreter.py", CODE_INTERPRETER),
        ("openai-agents", "openai_agents_port.py", {"tls": True, "page": "hello\n"}),
    ],
)
def test_program_reaches_the_hosts_of_ports(
    previews: PreviewService, tmp_path: Path, environment: str, program: str, expected: dict[str, Any]
) -> None:
    python = create_environment(f"tests/environments/clients/{environment}.lock", tmp_path / "venv")
    key = previews.service.key(environment, "--e2b", "--public-ports")
    assert run(previews, python, program, key) == expected
