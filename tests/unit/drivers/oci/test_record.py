"""Records: replaced as a whole, and refused unless this version can read them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.record import Record, Step
from sandlot.model.specs import Limits, RootKind

RECORD = Record("ab27-x", Step.PREPARE, "gvisor", "/usr/bin/runsc", "00ff", "digest", Limits(memory_bytes=1 << 30, cpus=0.5, pids=99))


def test_record_is_read_as_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert records.read(path) is None
    for step in Step:
        records.write(path, replace(RECORD, step=step))
        assert records.read(path) == replace(RECORD, step=step)
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_record_of_an_earlier_version_is_that_of_a_sandbox_on_a_folder() -> None:
    fields = json.loads(replace(RECORD, root_kind=RootKind.IMAGE).dump())
    assert records.load(json.dumps(fields)) == replace(RECORD, root_kind=RootKind.IMAGE)
    del fields["root_kind"]
    assert records.load(json.dumps(fields)) == RECORD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "1",
        "{}",
        json.dumps({**json.loads(RECORD.dump()), "version": 2}),
        json.dumps({**json.loads(RECORD.dump()), "step": "dance"}),
        json.dumps({**json.loads(RECORD.dump()), "limits": {"memory_bytes": 1}}),
        json.dumps({**json.loads(RECORD.dump()), "limits": {"memory": 1 << 30}}),
        json.dumps({**json.loads(RECORD.dump()), "limits": None}),
        json.dumps({**json.loads(RECORD.dump()), "root_kind": "disk"}),
        json.dumps({**json.loads(RECORD.dump()), "more": 1}),
        json.dumps({name: value for name, value in json.loads(RECORD.dump()).items() if name != "ref"}),
    ],
)
def test_record_that_this_version_cannot_read_is_none(text: str, tmp_path: Path) -> None:
    assert records.load(text) is None
    (tmp_path / "record.json").write_text(text)
    assert records.read(tmp_path / "record.json") is None
    (tmp_path / "record.json").write_bytes(b"\xff" + text.encode())
    assert records.read(tmp_path / "record.json") is None
