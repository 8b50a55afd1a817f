"""API keys of a data directory whose service does not run."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
from pathlib import Path

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.ports import SystemClock
from sandlot.model.access import Quota
from sandlot.server.offline_keys import with_keys
from sandlot.server.settings import Settings
from sandlot.store.store import open_store


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def names(api_keys: ApiKeys) -> list[str]:
    return [record.name for record in await api_keys.list()]


async def test_without_a_service_keys_are_in_the_same_store(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    record, secret = await with_keys(settings, lambda api_keys: api_keys.create("a", quota=Quota(sandboxes=3)))
    async with open_store(settings.database) as store:
        api_keys = ApiKeys(store.keys, SystemClock())
        await api_keys.refresh()
        found = api_keys.verify(secret)
    assert found is not None
    assert (found.owner, found.name, found.operator, found.quota) == (record.id, "a", False, Quota(sandboxes=3))


async def test_database_is_private_and_contains_no_secret(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    _, secret = await with_keys(settings, lambda api_keys: api_keys.create("a"))
    assert files(settings.data_dir) == {"format", "sandlot.db"}
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700
    found = settings.data_dir / "sandlot.db"
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert secret.removeprefix("sandlot_").encode() not in found.read_bytes()


MAKE = """
import asyncio, os, sys
from pathlib import Path
from sandlot.server.offline_keys import with_keys
from sandlot.server.settings import Settings
settings = Settings(data_dir=Path(sys.argv[1]))
makers = []
for name in sys.argv[2:]:
    makers.append(os.fork())
    if not makers[-1]:
        asyncio.run(with_keys(settings, lambda keys: keys.create(name)))
        os._exit(0)
sys.exit(any(os.waitpid(maker, 0)[1] for maker in makers))
"""
"""Forks a process for each key; what takes longest, the imports, is done once."""


async def test_many_commands_at_once_lose_no_key(tmp_path: Path) -> None:
    folder, made = tmp_path / "data", [f"k{number}" for number in range(4)]
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", MAKE, str(folder), *made], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(await with_keys(Settings(data_dir=folder), names)) == made
