"""Templates of the command lines of agents by the names of the vendors' pages, created by the vendors' own clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2b import Sandbox
from pandastack import Client

from tests.support.tcpservice import TcpService, tcp_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def service() -> Iterator[TcpService]:
    with tcp_service() as running:
        for name in ("claude", "codex", "agent"):  # builds the images, which takes longer than the clients wait
            running.create(name, timeout=1800).kill()
        yield running


@pytest.mark.parametrize("template, program", [("claude", "claude"), ("codex", "codex"), ("agent", "claude"), ("agent", "codex")])
def test_command_line_of_a_template_runs_by_the_names_of_the_vendor(service: TcpService, template: str, program: str) -> None:
    key = service.key(f"{template}-{program}")
    of_sandbase = Sandbox.create(template=template, api_key=key, api_url=f"{service.url}/sandbase", sandbox_url=f"{service.url}/e2b")
    assert of_sandbase.get_info().template_id == template
    version = of_sandbase.commands.run(f"{program} --version").stdout
    assert version.strip()
    of_sandbase.kill()
    with Client(api_url=f"{service.url}/pandastack", api_key=key).sandboxes.create(template=template) as of_pandastack:
        assert of_pandastack.template == template
        assert of_pandastack.exec(f"{program} --version").stdout == version
