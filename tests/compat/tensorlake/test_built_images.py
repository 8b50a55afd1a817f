"""An image that Tensorlake's own client builds, and a sandbox of it, on real gVisor."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tensorlake.image import Image
from tensorlake.sandbox import SandboxClient

from tests.support.tcpservice import TcpService


@pytest.mark.soak
async def test_image_is_built_and_its_sandbox_runs(
    service: TcpService, client: SandboxClient, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORLAKE_API_URL", f"{service.url}/tensorlake")
    monkeypatch.setenv("TENSORLAKE_API_KEY", key)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "none"))
    (tmp_path / "app.py").write_text("import os\nprint(os.environ['GREETING'], 'from the build')\n")
    image = (
        Image(name="app", base_image="python:3.12").env("GREETING", "hello").copy("app.py", "/srv/app.py").run("python3 /srv/app.py > /srv/out.txt")
    )
    await asyncio.to_thread(image.build, context_dir=str(tmp_path))

    def use() -> None:
        with client.create_and_connect("app", timeout_secs=600) as sandbox:
            seen = sandbox.run("sh", ["-c", "cat /srv/out.txt; python3 /srv/app.py"])
            assert (seen.exit_code, seen.stdout.splitlines()) == (0, ["hello from the build"] * 2)

    await asyncio.to_thread(use)
