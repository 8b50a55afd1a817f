"""``sandlot image``, with a cache that has a build of an unknown recipe."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.cli.main import dispatch
from sandlot.host.free_space import FreeSpace
from sandlot.images.build_cache import BuildCache

KEY = "a" * 64


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    def build(folder: Path, _lock: object) -> None:
        (folder / "manifest.json").write_text(json.dumps({"name": "old", "size_bytes": 3 << 20}))

    BuildCache(tmp_path, "roots", FreeSpace(tmp_path)).ensure(KEY, build, lambda: None)
    before = signal.getsignal(signal.SIGTERM)
    yield tmp_path
    signal.signal(signal.SIGTERM, before)


def test_builds_are_listed_and_deleted(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--cache", str(cache)]
    assert dispatch(["image", "ls", *at]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["KIND", "KEY", "SIZE", "NAME"], ["roots", KEY, "3M", "old"]]
    assert dispatch(["image", "ls", "--json", *at]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["old"]
    assert dispatch(["image", "rm", "b" * 64, KEY, *at]) == 1
    out, err = capsys.readouterr()
    assert out == f"{KEY}\n"
    assert "sandlot image ls" in err
    assert dispatch(["image", "ls", "-q", *at]) == 0
    assert capsys.readouterr().out == ""


def test_unknown_template_is_an_error(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["image", "build", "nonsense", "--cache", str(cache)]) == 1
    assert capsys.readouterr().err.startswith("sandlot: ")
