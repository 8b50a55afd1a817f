"""A docker-registry on loopback, and images that a client pushes to it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from sandlot.model.image_manifests import OCI_INDEX, OCI_MANIFEST
from tests.support.http import NO_TLS
from tests.support.oci import MadeImage, digest_of
from tests.support.until import until

REGISTRY = Path(sysconfig.get_path("scripts")) / "docker-registry"
CONFIG = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}", net: tcp}}
"""


@asynccontextmanager
async def docker_registry(folder: Path) -> AsyncIterator[str]:
    """Run a docker-registry whose files are in a folder, and yield its origin."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "registry.yml"
    config.write_text(CONFIG.format(folder=folder, port=port), encoding="ascii")
    process = await asyncio.create_subprocess_exec(REGISTRY, "serve", config, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    origin = f"http://127.0.0.1:{port}"

    async def is_up() -> bool:
        assert process.returncode is None, "the registry has ended"
        try:
            async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as client:
                return (await client.get(f"{origin}/v2/")).status_code == 200
        except httpx.TransportError:
            return False

    try:
        await until(is_up)
        yield origin
    finally:
        process.kill()
        await process.wait()


async def push(origin: str, made: MadeImage, repository: str, tag: str) -> None:
    """Push an image of this platform, and an index that names it."""
    async with httpx.AsyncClient(base_url=f"{origin}/v2/{repository}", trust_env=False, verify=NO_TLS, timeout=60) as client:
        for digest, data in made.blobs.items():
            where = (await client.post("/blobs/uploads/")).headers["location"]
            (await client.put(where, params={**httpx.URL(where).params, "digest": digest}, content=data)).raise_for_status()
        manifest = await client.put(f"/manifests/{digest_of(made.manifest)}", content=made.manifest, headers={"Content-Type": OCI_MANIFEST})
        manifest.raise_for_status()
        (await client.put(f"/manifests/{tag}", content=made.index(only=True), headers={"Content-Type": OCI_INDEX})).raise_for_status()
