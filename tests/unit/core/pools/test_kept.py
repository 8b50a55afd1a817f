"""Pools that were made at run time survive the service."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.core.pools.kept import FILE, Kept
from sandlot.core.pools.kinds import Kind, Sizes
from sandlot.model.errors import HostError
from sandlot.model.specs import Limits

SAID = {Kind("base", "gvisor", Limits(pids=99)): Sizes(2, 4, 1), Kind("code-interpreter", "gvisor", Limits()): None}


def test_what_was_said_is_read_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept.read() == {}
    kept.write(SAID)
    assert Kept(tmp_path).read() == SAID
    (kind, *_) = SAID
    kept.write(SAID, {kind: {"team": "blue"}})
    other = Kept(tmp_path)
    assert (other.read(), other.words[kind]) == (SAID, {"team": "blue"})
    kept.write({})
    assert Kept(tmp_path).read() == {}
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2, "pools": []}', '{"format": 1, "pools": [{"kind": {}, "sizes": null}]}', "\xff"])
def test_a_file_that_cannot_be_read_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert Kept(tmp_path).read() == {}
    assert [file.read_text("latin-1") for file in tmp_path.iterdir()] == [text]
    assert not (tmp_path / FILE).exists()


def test_a_disk_that_refuses_leaves_what_there_was(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.write(SAID)
    (tmp_path / f".{FILE}").mkdir()
    with pytest.raises(HostError):
        kept.write({})
    assert kept.read() == SAID
