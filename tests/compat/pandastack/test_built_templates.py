"""A template that PandaStack's own command line builds from a Dockerfile and its context, and a sandbox of it, on real gVisor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pandastack import Client

from tests.support.tcpservice import TcpService

DOCKERFILE = """\
FROM python:3.12
WORKDIR /srv
COPY app.py .
ENV GREETING=hello
RUN python3 app.py > out.txt && id -un >> out.txt
"""


@pytest.mark.soak
def test_template_is_built_by_the_command_line_and_its_sandbox_runs(gvisor_service: TcpService, tmp_path: Path) -> None:
    url, key = f"{gvisor_service.url}/pandastack", gvisor_service.key("builder")
    (tmp_path / "app.py").write_text("import os\nprint(os.environ['GREETING'], 'from the build')\n")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    argv = [sys.executable, "-m", "pandastack", "template", "build", "--name", "app", "--context", ".", "--size-mb", "2048", "--no-wait"]
    env = {**os.environ, "PANDASTACK_API": url, "PANDASTACK_API_KEY": key}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    client = Client(api_url=url, api_key=key)
    # Without `--no-wait`, the command of pandastack 0.10.0 streams the log and then calls a function that it does not have.
    assert client.templates.wait_for_build(done.stdout.strip()).status == "done"
    sandbox = client.sandboxes.create(template="app")
    try:
        seen = sandbox.exec("cat /srv/out.txt; python3 /srv/app.py; pwd")
        assert (seen.exit_code, seen.stdout.splitlines()) == (0, ["hello from the build", "root", "hello from the build", "/srv"])
    finally:
        sandbox.kill()
