"""The package cache with real clients: pip, uv, npm and apt of this machine, and this machine's own indexes upstream.

Each installs into a folder of its own twice, without any cache of its own: first from upstream, then from the store, which asks upstream
nothing. Few and small packages, so that registries are asked a few dozen times in all.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from sandlot.egress.packages.config.machine import PackageSources
from tests.support.packages import Served, served

pytestmark = pytest.mark.slow

PACKAGES = ("six", "humanize")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UV = Path(sysconfig.get_path("scripts")) / "uv"


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[Served]:
    async with served(tmp_path / "packages", PackageSources.of_this_machine) as found:
        yield found


async def run(argv: Sequence[str | Path], folder: Path) -> str:
    """Run a client that knows nothing of this machine's configuration."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "PIP_CONFIG_FILE": os.devnull, "LC_ALL": "C.UTF-8"}
    process = await asyncio.create_subprocess_exec(
        *argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def twice(cache: Served, install: Callable[[], Awaitable[object]]) -> None:
    """Install twice; the second time nothing comes from upstream."""
    await install()
    first = cache.cache.counters()
    await install()
    second = cache.cache.counters()
    assert first.upstream_requests > 0
    assert second.upstream_requests == first.upstream_requests
    assert second.hits > first.hits
    assert (second.errors, second.mismatches, second.stale, cache.cut) == (0, 0, 0, [])


async def test_uv_installs_through_the_cache(cache: Served, tmp_path: Path) -> None:
    target = tmp_path / "target"

    async def install() -> None:
        shutil.rmtree(target, ignore_errors=True)
        options = ("--no-cache", "--no-config", "--python", sys.executable, "--target", target, "--default-index", f"{cache.origin}/pypi/simple/")
        await run([UV, "pip", "install", *options, *PACKAGES], tmp_path / "home")
        assert {"six.py", "humanize"} <= {path.name for path in target.iterdir()}

    await twice(cache, install)


async def test_pip_installs_from_a_lock_with_hashes(cache: Served, tmp_path: Path) -> None:
    """A lock file has no link of the cache but the hashes of files: what was locked against an index installs through the cache."""
    target, index = tmp_path / "target", f"{cache.origin}/pypi/simple/"
    (tmp_path / "in").write_text("six==1.17.0\n", encoding="ascii")
    lock = ("--default-index", index, "--no-cache", "--no-config", "--generate-hashes", "--no-emit-index-url", "--output-file", tmp_path / "lock")
    await run([UV, "pip", "compile", *lock, tmp_path / "in"], tmp_path / "home")
    assert "127.0.0.1" not in (tmp_path / "lock").read_text(encoding="ascii")

    async def install() -> None:
        shutil.rmtree(target, ignore_errors=True)
        options = ("--no-cache-dir", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--target", target, "--index-url", index)
        await run([sys.executable, "-m", "pip", "install", *options, "-r", tmp_path / "lock"], tmp_path / "home")
        assert (target / "six.py").exists()

    await twice(cache, install)


@pytest.mark.may_skip("npm is no part of the supported hosts; inside of sandboxes it is tried with the image's")
async def test_npm_installs_through_the_cache(cache: Served, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here")

    async def install() -> None:
        folder = tmp_path / "project"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "package.json").write_text(json.dumps({"name": "x", "version": "1.0.0"}), encoding="ascii")
        options = ("--registry", f"{cache.origin}/npm/", "--cache", folder / "cache", "--no-update-notifier", "--ignore-scripts")
        await run([npm, "install", *options, "is-odd", "@types/is-odd", "esbuild"], folder)
        assert (folder / "node_modules/is-odd/package.json").exists()
        assert list((folder / "node_modules/@esbuild").iterdir()), "the one for this kind of machine"
        assert cache.origin in (folder / "package-lock.json").read_text(encoding="utf-8")

    await twice(cache, install)


async def test_apt_installs_through_the_cache(cache: Served, tmp_path: Path) -> None:
    root = tmp_path / "root"

    async def install() -> None:
        shutil.rmtree(root, ignore_errors=True)
        for folder in ("etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg"):
            (root / folder).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()
        (root / "etc/apt/sources.list").write_text(
            # The index of bookworm itself, which takes apt many seconds to read, is used by the sandboxes of test_packages.py.
            f"deb [signed-by={KEYRING}] {cache.origin}/debian-security bookworm-security main\n",
            encoding="ascii",
        )
        options = ["-o", f"Dir={root}", "-o", f"Dir::State::status={root}/var/lib/dpkg/status", "-o", "Acquire::Languages=none"]
        apt = ["apt-get", *options, "-o", "APT::Sandbox::User=root", "-o", "APT::Update::Error-Mode=any"]
        await run([*apt, "update"], root)
        await run([*apt, "download", "libcurl4", "openssl"], root)
        assert sorted(path.name.partition("_")[0] for path in root.glob("*.deb")) == ["libcurl4", "openssl"]

    await twice(cache, install)
