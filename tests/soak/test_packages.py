"""Promise: installs of two hundred mixed packages; what was installed once asks upstream nothing again, and the cache keeps to its bound.

``scripts/soak tests/soak/test_packages.py`` runs this: some hundred small downloads from the indexes that this machine is configured for, into
a cache of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.egress.packages.cache import PackageCache
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.counters import Counters
from sandlot.model.access import OPERATOR
from sandlot.model.executions import CommandResult
from sandlot.model.packages import InstallParams, Manager
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import GIB, MIB
from sandlot.server.composition import RunningService, open_service
from sandlot.server.settings import Settings
from tests.support.cache import CACHE_DIR
from tests.support.localservice import ISOLATIONS

PACKAGES = {
    Manager.PIP: """
        six tabulate idna colorama toolz more-itertools certifi charset-normalizer urllib3 requests click packaging attrs pluggy iniconfig tomli
        typing-extensions zipp filelock platformdirs decorator pytz python-dateutil tzdata markupsafe jinja2 itsdangerous werkzeug blinker flask
        pygments docutils pyparsing cycler sortedcontainers cachetools pyyaml simplejson orjson xmltodict beautifulsoup4 soupsieve html5lib
        webencodings chardet text-unidecode python-slugify humanize inflection shellingham markdown-it-py mdurl rich typer tqdm psutil networkx
        sympy mpmath httpx
    """,
    Manager.NPM: """left-pad is-odd is-number is-even lodash ms debug uuid nanoid chalk kleur minimist yargs-parser semver dayjs camelcase slugify
        escape-string-regexp deepmerge mime once inherits safe-buffer balanced-match @types/left-pad""",
    Manager.APT: "tree hello bc sl cowsay figlet dos2unix pv time xxd lsof datamash toilet units zstd",
}
EACH = [(manager, word) for manager, words in PACKAGES.items() for word in words.split()]
LARGE = ("numpy", "pandas", "lxml", "pillow", "cryptography", "grpcio", "matplotlib", "sqlalchemy", "pydantic-core", "numpy", "lxml")
"""More than the smallest cache holds, and two of them again."""


@asynccontextmanager
async def serving(folder: Path, cache: PackageCache) -> AsyncIterator[RunningService]:
    (folder / "data").mkdir()
    settings = Settings(data_dir=folder / "data", cache_dir=CACHE_DIR, isolation_allowed=ISOLATIONS)
    await cache.start()
    try:
        async with open_service(settings, packages=cache) as service:
            yield service
    finally:
        await cache.aclose()


def cache_in(folder: Path, max_bytes: int) -> PackageCache:
    # A day: however long this takes, no page of an index becomes old meanwhile.
    return PackageCache(folder / "packages", PackageSources.of_this_machine, max_bytes=max_bytes, ttl_s=86_400)


async def sandbox_of(service: RunningService, isolation: str) -> Sandbox:
    return await service.internals.manager.create(OPERATOR, CreateSandboxParams(template="base", isolation=isolation, timeout_s=3600))


async def install(node: Node, sandbox: Sandbox, manager: Manager, word: str) -> CommandResult:
    done = await node.packages.install(OPERATOR, sandbox.id, InstallParams(manager, (word,)))
    assert done.outcome.exit_code == 0, (sandbox.spec.isolation, manager, word, done.stdout.text()[-1000:], done.stderr.text()[-2000:])
    return done


async def round_of(service: RunningService) -> None:
    """Everything in a fresh sandbox of each kind, both at once."""

    async def all_of(isolation: str) -> None:
        sandbox = await sandbox_of(service, isolation)
        for manager, word in EACH:
            await install(service.node, sandbox, manager, word)
        await service.internals.manager.kill(OPERATOR, sandbox.id)

    async with asyncio.TaskGroup() as group:
        for isolation in ISOLATIONS:
            group.create_task(all_of(isolation))


def size_of(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # what is being evicted
            status = path.lstat()
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


@pytest.mark.soak
@pytest.mark.timeout(3000)
async def test_two_hundred_installs_and_again_without_asking_upstream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(EACH) * len(ISOLATIONS) >= 200
    cache = cache_in(tmp_path, 2 * GIB)
    async with serving(tmp_path, cache) as service:
        await round_of(service)
        first = cache.counters()
        await round_of(service)
        second = cache.counters()
    told(capsys, first, second, size_of(tmp_path / "packages"))
    assert first.upstream_requests > 0
    assert (second.upstream_requests, second.upstream_bytes) == (first.upstream_requests, first.upstream_bytes)
    assert second.served_bytes - first.served_bytes > MIB
    assert (second.errors, second.mismatches, second.evictions) == (0, 0, 0)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_small_cache_keeps_to_its_bound_and_everything_is_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bound = 64 * MIB
    cache = cache_in(tmp_path, bound)
    most = 0

    async def sample() -> None:
        nonlocal most
        while True:
            most = max(most, await asyncio.to_thread(size_of, tmp_path / "packages"))
            await asyncio.sleep(0.05)

    async with serving(tmp_path, cache) as service:
        sampling = asyncio.create_task(sample())
        sandbox = await sandbox_of(service, "container")
        for word in LARGE:
            await service.internals.manager.kill(OPERATOR, sandbox.id)
            sandbox = await sandbox_of(service, "container")
            await install(service.node, sandbox, Manager.PIP, word)
        assert not sampling.done(), "it was looked at all the time, drafts included"
        sampling.cancel()
        counted = cache.counters()
    told(capsys, counted, counted, most)
    assert most <= bound
    assert counted.evictions > 0
    assert counted.upstream_bytes > bound


def told(capsys: pytest.CaptureFixture[str], first: Counters, second: Counters, size: int) -> None:
    with capsys.disabled():
        print(f"\nfirst {dataclasses.asdict(first)}\nsecond {dataclasses.asdict(second)}\ndisk {size / MIB:.1f} MiB")
