"""Claude Code and Codex in sandboxes of their templates: a prompt runs a command in the sandbox, and only the endpoint of the model is reached.

The service and the endpoint are in a network of the test's own, where the endpoint has a public name. The model is the only part that is not real.
"""

from __future__ import annotations

import secrets
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandlot import Network
from tests.support.internet import RESOLVER, Internet, internet
from tests.support.internet_service import NETNS, RESOLV_CONF
from tests.support.localservice import LocalService, local_service
from tests.support.scripted_model.endpoint import Endpoint, scripted_model
from tests.support.scripted_model.steps import Call, Conversation, Say, Step

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

HOST, ADDRESS = "model.example.com", "23.30.0.1"
PROMPT = "Compute the figure."
COMMAND = "expr $(cat /workspace/seed) \\* 7 | tee /workspace/figure"
TOOLS: Mapping[str, Mapping[str, str]] = {"Bash": {"command": COMMAND, "description": "Compute"}, "exec_command": {"cmd": COMMAND}}
"""Tool of a program that runs commands -> arguments of its call."""


@dataclass(frozen=True)
class Program:
    """A command line.

    Args:
        command: Command that answers the prompt.
        key: Variable of the key.
        env: Other variables.
    """

    command: str
    key: str
    env: Mapping[str, str]


CODEX = f'{{name = "scripted", base_url = "http://{HOST}/v1", env_key = "OPENAI_API_KEY", wire_api = "responses"}}'
PROGRAMS = {
    "claude": Program(f"claude -p '{PROMPT}' --dangerously-skip-permissions", "ANTHROPIC_API_KEY", {"ANTHROPIC_BASE_URL": f"http://{HOST}"}),
    "codex": Program(
        f"codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m scripted -c model_provider=scripted "
        f"-c 'model_providers.scripted={CODEX}' '{PROMPT}'",
        "OPENAI_API_KEY",
        {},
    ),
}


def script(conversation: Conversation) -> Step:
    """Run the command, and then say its output. Requests without the tool are for titles and the like."""
    if conversation.results:
        return Say(f"The figure is {conversation.results[-1].text.split()[-1]}.")  # Codex tells the time and the status first
    return next((Call(name, arguments) for name, arguments in TOOLS.items() if name in conversation.tools), Say("Computation"))


@pytest.fixture(scope="module")
def net() -> Iterator[Internet]:
    with internet({HOST: [ADDRESS]}) as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(net: Internet) -> Iterator[Endpoint]:
    with scripted_model(script) as opened:
        port = urlsplit(opened.address).port
        net.forward(net.listen(net.outside, ADDRESS, 80), lambda: socket.create_connection(("127.0.0.1", port)))
        yield opened


@pytest.fixture(scope="module")
def service(net: Internet) -> Iterator[LocalService]:
    with tempfile.TemporaryDirectory() as folder:
        resolv_conf = Path(folder) / "resolv.conf"
        resolv_conf.write_text(f"nameserver {RESOLVER}\n")
        env = {NETNS: net.inside.path, RESOLV_CONF: str(resolv_conf)}
        with local_service(env, program="tests.support.internet_service", preloaded=False) as running:
            yield running


@pytest.mark.parametrize("template, name", [("claude", "claude"), ("codex", "codex"), ("agent", "claude"), ("agent", "codex")])
def test_command_line_runs_a_command_and_answers_with_its_output(
    net: Internet, service: LocalService, endpoint: Endpoint, template: str, name: str
) -> None:
    program, key, seed = PROGRAMS[name], f"key-{secrets.token_hex(8)}", secrets.randbelow(10**6)
    net.queries.clear()
    endpoint.keys.clear()
    network = Network("allowlist", allow=[HOST], packages=False)
    with service.create(template, envs={**program.env, program.key: key}, network=network, timeout=600) as sandbox:
        sandbox.files.write("/workspace/seed", str(seed))
        done = sandbox.commands.run(program.command, cwd="/workspace", timeout=120)
        seen = sandbox.network.info()
        assert done.exit_code == 0, (done.stdout, done.stderr, seen, endpoint.refused)
        assert f"The figure is {seed * 7}." in done.stdout
        assert sandbox.files.read("/workspace/figure").strip() == str(seed * 7)
        assert endpoint.keys == {key}
        print(f"{name} was refused:", *(f"{each.host}:{each.port}" for each in seen.refusals))
        assert {each.reason for each in seen.refusals} <= {"host_not_allowed"}
        assert {each.host for each in seen.destinations} == {HOST}
        assert set(net.queries) == {HOST}  # not even the name of another host has left the sandbox
