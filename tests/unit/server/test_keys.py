"""Keys where no service runs, and the key file of versions before there was a store."""

from __future__ import annotations

import asyncio
import hashlib
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.ports import SystemClock
from sandlot.model.access import Quota
from sandlot.model.errors import HostError
from sandlot.server.keys import ASIDE, FILE, take_over, with_keys
from sandlot.server.settings import Settings
from sandlot.store.store import open_store

BEFORE = "sandlot_of-before"


def key_file(folder: Path, *names: str) -> Path:
    keys = [
        {
            "id": f"{number:012x}",
            "name": name,
            "sha256": hashlib.sha256((BEFORE + name).encode()).hexdigest(),
            "created_at": "2026-01-01T00:00:00+00:00",
        }
        for number, name in enumerate(names)
    ]
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / FILE
    file.write_text(json.dumps({"format": 1, "keys": keys}))
    return file


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


async def test_the_database_is_private_and_holds_no_secret(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    _, secret = await with_keys(settings, lambda api_keys: api_keys.create("a"))
    assert files(settings.data_dir) == {"format", "sandlot.db"}
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700
    found = settings.data_dir / "sandlot.db"
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert secret.removeprefix("sandlot_").encode() not in found.read_bytes()


async def test_keys_of_before_go_on_working_and_are_taken_over_once(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    file = key_file(settings.data_dir, "first", "second")
    assert await with_keys(settings, names) == ["first", "second"]
    assert file.name not in files(settings.data_dir)
    assert ASIDE in files(settings.data_dir)
    await with_keys(settings, lambda api_keys: api_keys.revoke("first"))
    assert await with_keys(settings, names) == ["second"]
    async with open_store(settings.database) as store:
        api_keys = ApiKeys(store.keys, SystemClock())
        await api_keys.refresh()
        found = api_keys.verify(BEFORE + "second")
        assert found is not None
        assert (found.owner, found.name, found.operator, found.quota) == (f"{1:012x}", "second", False, Quota())
        assert api_keys.verify(BEFORE + "first") is None


async def test_taking_over_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    async with open_store(tmp_path / "rows.db") as store:
        key_file(tmp_path, "first")
        assert await take_over(store.keys, tmp_path) == 1
        key_file(tmp_path, "first", "second")  # the file is there still, as after a kill before it was put aside
        assert await take_over(store.keys, tmp_path) == 2
        assert [record.name for record in await store.keys.list()] == ["first", "second"]
        assert await take_over(store.keys, tmp_path) == 0


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"format": 1}',
        '{"format": 1, "keys": [{}]}',
        '{"format": 2, "keys": []}',
        '{"format": 1, "keys": [{"id": "0", "name": "a", "sha256": "no digits", "created_at": "2026-01-01T00:00:00+00:00"}]}',
    ],
)
async def test_a_broken_file_is_named_and_left(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    async with open_store(tmp_path / "rows.db") as store:
        with pytest.raises(HostError) as broken:
            await take_over(store.keys, tmp_path)
        assert await store.keys.list() == []
    assert FILE in broken.value.message
    assert broken.value.hint
    assert (tmp_path / FILE).read_text() == content


MAKE = """
import asyncio, os, sys
from pathlib import Path
from sandlot.server.keys import with_keys
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
