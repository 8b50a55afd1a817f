"""A template that E2B's own client builds from an image, files and commands, and a sandbox of it, on real gVisor."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2b import Sandbox, Template, wait_for_port
from e2b.exceptions import BuildException

from tests.support.applications import FLASK, write_files
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


def test_template_has_links_and_a_step_of_an_unknown_user_fails(gvisor_service: TcpService, tmp_path: Path) -> None:
    key, url = gvisor_service.key("links"), f"{gvisor_service.url}/e2b"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("content")
    for name, target in (("relative", "file"), ("absolute", str(tmp_path / "folder" / "file")), ("dangling", "nowhere")):
        (tmp_path / "folder" / name).symlink_to(target)
    template = (
        Template(file_context_path=tmp_path)
        .from_image("ubuntu:22.04")
        .copy("folder/*", "folder", force_upload=True)
        .copy("folder/relative", "followed", resolve_symlinks=True)
        .make_symlink(".bashrc", ".bashrc.local")
        .make_symlink(".bashrc", ".bashrc.local", force=True)
        .run_cmd("readlink folder/relative folder/dangling .bashrc.local; cat folder/relative; test ! -L followed && cat followed")
        .run_cmd("whoami", user="nobody-here")
    )
    lines: list[str] = []
    expected = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'nobody-here'"
    with pytest.raises(BuildException, match=expected):
        Template.build(template, "links", on_build_logs=lambda entry: lines.append(entry.message), api_key=key, api_url=url)
    at = lines.index("nowhere")
    assert lines[at - 1 : at + 3] == ["file", "nowhere", ".bashrc", "contentcontent"]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_dockerfile_of_an_application_is_built(gvisor_service: TcpService, tmp_path: Path) -> None:
    key, url = gvisor_service.key("shop"), f"{gvisor_service.url}/e2b"
    write_files(tmp_path, FLASK)
    template = Template(file_context_path=tmp_path).from_dockerfile(str(tmp_path / "Dockerfile"))
    lines: list[str] = []
    Template.build(template, "shop", memory_mb=512, on_build_logs=lambda entry: lines.append(entry.message), api_key=key, api_url=url)
    assert any("is an alias" in line for line in lines)
    sandbox = Sandbox.create("shop", api_key=key, api_url=url, sandbox_url=url)
    try:
        seen = sandbox.commands.run("id -un; pwd; curl -s localhost:8000").stdout.split("\n")
        assert seen[:3] == ["shop", "/srv/shop", "<h1>The corner shop</h1><p>served by shop</p>"]
    finally:
        sandbox.kill()
