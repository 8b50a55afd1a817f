"""``pools.json``: pools that requests created, changed or deleted survive the service."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sandlot.core.pools.config_file import POOLS_FILE, PoolConfigFile
from sandlot.core.pools.models import PoolConfig, PoolId, PoolSpec
from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import HostError
from sandlot.model.pools import PoolSizes
from sandlot.model.specs import Limits, TemplateRef

SPEC = PoolSpec(TemplateRef(LOCAL, "base"), "gvisor", Limits(cpus=2, pids=99))
SHARED = PoolConfig(SPEC, PoolSizes(2, 4, 1), metadata={"team": "blue"})
PRIVATE = PoolConfig(SPEC, PoolSizes(1, 1), OwnerId("0123456789ab"))
DELETED = PoolConfig(PoolSpec(TemplateRef(LOCAL, "code-interpreter"), "gvisor", Limits()), None)


def by_id(*configs: PoolConfig) -> dict[PoolId, PoolConfig]:
    return {config.pool_id: config for config in configs}


def write(folder: Path, configs: Iterable[PoolConfig] = (SHARED, PRIVATE, DELETED)) -> None:
    PoolConfigFile(folder).write(configs)


def test_missing_file_has_no_pools(tmp_path: Path) -> None:
    assert PoolConfigFile(tmp_path).read() == {}


def test_shared_private_and_deleted_pools_are_read_back(tmp_path: Path) -> None:
    write(tmp_path)

    assert PoolConfigFile(tmp_path).read() == by_id(SHARED, PRIVATE, DELETED)


def test_pool_keeps_its_id(tmp_path: Path) -> None:
    write(tmp_path)

    assert [str(pool_id) for pool_id in PoolConfigFile(tmp_path).read()] == [str(each.pool_id) for each in (SHARED, PRIVATE, DELETED)]


def test_write_replaces_the_whole_file(tmp_path: Path) -> None:
    write(tmp_path)

    write(tmp_path, ())

    assert PoolConfigFile(tmp_path).read() == {}
    assert [file.name for file in tmp_path.iterdir()] == [POOLS_FILE]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "pools": []}',
        '{"format": 6, "pools": [{"spec": {}, "sizes": null}]}',
        '{"format": 6, "pools": [{"spec": {"template": "base", "isolation": "gvisor", "limits": {"pids": 1}}, "sizes": null}]}',
        "\xff",
    ],
    ids=["empty", "truncated", "list", "other format", "incomplete", "invalid limits", "not UTF-8"],
)
def test_unreadable_file_is_renamed(tmp_path: Path, text: str) -> None:
    (tmp_path / POOLS_FILE).write_text(text, encoding="latin-1")

    assert PoolConfigFile(tmp_path).read() == {}

    assert [file.read_text("latin-1") for file in tmp_path.iterdir()] == [text]
    assert not (tmp_path / POOLS_FILE).exists()


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / f".{POOLS_FILE}").mkdir()

    with pytest.raises(HostError):
        write(tmp_path, ())

    assert PoolConfigFile(tmp_path).read() == by_id(SHARED, PRIVATE, DELETED)
