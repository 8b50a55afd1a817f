"""``sandlot template``."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from sandlot.cli import sbom
from sandlot.cli.main import dispatch
from sandlot.images.packages import Description
from tests.unit.sdk.scripted import Reply, Script

BASE = {"name": "base", "description": "Debian", "built": True, "digest": "abc", "languages": {"bash": "5.2", "python": None}}
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
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["digest", "abc"] in rows
    assert ["languages", "bash", "5.2,", "python"] in rows
    assert dispatch(["template", "info", "base", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["built"] is True


def test_bill_of_materials_names_packages_by_their_urls() -> None:
    packages = [
        Description("deb", "libstdc++6", "12.2.0-14", "gcc-12", "12.2.0-14", ("GPL-3+", "LGPL-2.1+")),
        Description("npm", "@scope/right", "1.0.0", licences=("MIT",)),
        Description("pypi", "numpy", "2.0"),
        Description("other", "x", "1"),
    ]
    found = sbom.document("web:v1", packages, at=datetime(2026, 1, 2, tzinfo=UTC))
    assert (found["bomFormat"], found["specVersion"], found["metadata"]["timestamp"]) == ("CycloneDX", "1.6", "2026-01-02T00:00:00+00:00")
    assert found["metadata"]["component"]["name"] == "web:v1"
    assert [each["purl"] for each in found["components"]] == [
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14",
        "pkg:npm/%40scope/right@1.0.0",
        "pkg:pypi/numpy@2.0",
    ]
    licences = [[each["license"]["name"] for each in component.get("licenses", ())] for component in found["components"]]
    assert licences == [["GPL-3+", "LGPL-2.1+"], ["MIT"], []]
    sources = [[each["purl"] for each in component.get("pedigree", {}).get("ancestors", ())] for component in found["components"]]
    assert sources == [["pkg:deb/debian/gcc-12@12.2.0-14?arch=source"], [], []]
