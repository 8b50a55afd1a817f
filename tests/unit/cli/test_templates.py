"""``sandlot template``."""

from __future__ import annotations

import json

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script

BASE = {"name": "base", "description": "Debian", "built": True, "digest": "abc"}
NEW = {"name": "new", "description": "other", "built": False, "building": "packages"}


def test_templates_are_listed_with_the_state_of_their_builds(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(lambda _: Reply(200, {"templates": [BASE, NEW]}))
    assert dispatch(["template", "ls"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["NAME", "BUILT", "DESCRIPTION"],
        ["base", "yes", "Debian"],
        ["new", "packages", "other"],
    ]
    assert dispatch(["template", "ls", "-q"]) == 0
    assert capsys.readouterr().out == "base\nnew\n"


def test_info_shows_one_template(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(lambda _: Reply(200, BASE))
    assert dispatch(["template", "info", "base"]) == 0
    assert there.seen[-1].path == "/v1/templates/base"
    assert ["digest", "abc"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert dispatch(["template", "info", "base", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["built"] is True
