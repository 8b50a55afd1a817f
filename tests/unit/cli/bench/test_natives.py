"""The yardsticks do what they say, and leave nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.cli.bench import natives
from sandlot.cli.bench.natives import Natives


def inside(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def content() -> AsyncIterator[bytes]:
    for _ in range(3):
        yield bytes(100_000)


@pytest.mark.parametrize("unix", [True, False])
async def test_each_does_its_work_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, unix: bool) -> None:
    monkeypatch.setattr(natives, "DISK", str(tmp_path))
    async with Natives(unix=unix) as native:
        (folder,) = inside(tmp_path)
        await native.http()
        await native.execute()
        await native.stop_and_go()
        await native.python()
        await native.shell()
        await native.upload(content(), 300_000)
        assert await native.download() == 300_000
        await native.write(3_000_001, synced=True)
        assert (folder / "image").stat().st_size == 3_000_001
        await native.read(5_000_000, 2)
        assert (folder / "image").stat().st_size == 5_000_000
        assert native.idle_bytes() > 1 << 20
        assert native.idle_cpu_s() < 60
    assert inside(tmp_path) == []
    with pytest.raises(OSError, match="No such"):
        native.idle_cpu_s()  # the process is gone
