"""A template that E2B's own client builds from an image, files and commands, and a sandbox of it, on real gVisor."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2b import Sandbox, Template, wait_for_port

from tests.support.tcpservice import TcpService


@pytest.mark.soak
def test_template_is_built_and_its_sandbox_serves(gvisor_service: TcpService, tmp_path: Path) -> None:
    key, url = gvisor_service.key("builder"), f"{gvisor_service.url}/e2b"
    (tmp_path / "page.html").write_text("<p>page</p>\n")
    template = (
        Template(file_context_path=tmp_path)
        .from_image("ubuntu:22.04")  # an alias of the template `base`
        .copy("page.html", "/srv/page.html")
        .run_cmd("id -un > who.txt && pwd >> who.txt")
        .run_cmd("id -un > /root.txt", user="root")
        .set_envs({"GREETING": "hello"})
        .set_workdir("/srv")
        .set_start_cmd("python3 -m http.server 8000", wait_for_port(8000))
    )
    lines: list[str] = []
    built = Template.build(
        template, "web:v1", cpu_count=1, memory_mb=512, on_build_logs=lambda entry: lines.append(entry.message), api_key=key, api_url=url
    )
    assert built.tags == ["v1"]
    assert any("is an alias" in line for line in lines)
    sandbox = Sandbox.create("web:v1", api_key=key, api_url=url, sandbox_url=url)
    try:
        seen = sandbox.commands.run("id -un; pwd; cat /home/user/who.txt /root.txt; curl -s localhost:8000/page.html").stdout
        assert seen.splitlines() == ["user", "/srv", "user", "/home/user", "root", "<p>page</p>"]
    finally:
        sandbox.kill()
