"""Pools that were made at run time survive the service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandlot.core.pools.config_file import FILE, PoolConfigFile, Said
from sandlot.core.pools.models import PoolId, PoolSizes, PoolSpec, kind_as_words
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import HostError
from sandlot.model.specs import Limits

KIND = PoolSpec("base", "gvisor", Limits(pids=99))
SAID = {
    PoolId(LOCAL, KIND): Said(PoolSizes(2, 4, 1), {"team": "blue"}),
    PoolId(OwnerId("0123456789ab"), KIND): Said(PoolSizes(1, 1)),
    PoolId(LOCAL, PoolSpec("code-interpreter", "gvisor", Limits())): Said(None),
}


def test_what_was_said_is_read_back(tmp_path: Path) -> None:
    kept = PoolConfigFile(tmp_path)
    assert kept.read() == {}
    kept.write(SAID)
    assert PoolConfigFile(tmp_path).read() == SAID
    kept.write({})
    assert PoolConfigFile(tmp_path).read() == {}
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_one_that_has_owners_is_not_read_by_a_service_that_knows_none(tmp_path: Path) -> None:
    PoolConfigFile(tmp_path).write(SAID)
    assert json.loads((tmp_path / FILE).read_text("utf-8"))["format"] == 2  # of format 1 it would make all of them the node's


def test_one_of_before_pools_had_owners_is_the_nodes(tmp_path: Path) -> None:
    pool = {"kind": kind_as_words(KIND), "sizes": {"warm": 2, "max": 4, "blank": 1}, "metadata": {"team": "blue"}}
    (tmp_path / FILE).write_text(json.dumps({"format": 1, "pools": [pool]}), "utf-8")
    assert PoolConfigFile(tmp_path).read() == {PoolId(LOCAL, KIND): Said(PoolSizes(2, 4, 1), {"team": "blue"})}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 3, "pools": []}', '{"format": 1, "pools": [{"kind": {}, "sizes": null}]}', "\xff"])
def test_a_file_that_cannot_be_read_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text, encoding="latin-1")
    assert PoolConfigFile(tmp_path).read() == {}
    assert [file.read_text("latin-1") for file in tmp_path.iterdir()] == [text]
    assert not (tmp_path / FILE).exists()


def test_a_disk_that_refuses_leaves_what_there_was(tmp_path: Path) -> None:
    kept = PoolConfigFile(tmp_path)
    kept.write(SAID)
    (tmp_path / f".{FILE}").mkdir()
    with pytest.raises(HostError):
        kept.write({})
    assert kept.read() == SAID
