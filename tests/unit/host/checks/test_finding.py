"""Findings pass between processes as JSON."""

from __future__ import annotations

import json

import pytest

from sandlot.host.checks.finding import Finding, Part, load


def test_a_finding_survives_json() -> None:
    finding = Finding("a", ok=None, detail="b", fix="c", required=False, group="d", parts=(Part("e", ok=False, detail="f"),), facts={"g": [1, None]})
    assert load(json.loads(json.dumps(finding.dump()))) == finding


def test_something_else_is_none() -> None:
    with pytest.raises(TypeError):
        load({"name": "a", "surprise": 1})
