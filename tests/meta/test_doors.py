"""Every door says which of its vendor's calls there are, in one table (COVERAGE.md) that its routes and its tests agree with."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute, APIWebSocketRoute

from sandlot.doors.door import Door
from sandlot.server.app import DOORS
from tests.meta.tree import PACKAGE, ROOT

ROW = re.compile(
    r"^\| `(?P<method>[A-Z]+) (?P<path>/[^`]*)` \| (?P<supported>yes|no) \| (?P<since>\d+\.\d+\.\d+) \| (?P<how>[^|]+) \| (?P<tests>[^|]+) \|$",
    re.MULTILINE,
)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

EVERY_DOOR = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)


def rows(door: Door) -> list[re.Match[str]]:
    return list(ROW.finditer((PACKAGE / "doors" / door.name / "COVERAGE.md").read_text(encoding="utf-8")))


@EVERY_DOOR
def test_the_table_has_every_route_and_no_other(door: Door) -> None:
    routes = [*door.router.routes, *(door.at_root.routes if door.at_root is not None else ())]
    http = [(method, route.path) for route in routes if isinstance(route, APIRoute) for method in route.methods or ()]
    sockets = [("WS", route.path) for route in routes if isinstance(route, APIWebSocketRoute)]
    assert {(row["method"], row["path"]) for row in rows(door)} == {*http, *sockets}


@EVERY_DOOR
def test_every_call_names_a_test_that_exists_and_a_supported_one_the_vendors_own_client(door: Door) -> None:
    for row in rows(door):
        named = TEST.findall(row["tests"])
        assert named, row[0]
        for path, name in named:
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), f"{path} has no {name}"
        if row["supported"] == "yes":
            assert any(path.startswith(f"tests/compat/{door.name}/") for path, _ in named), row[0]


def test_every_door_is_open_and_nothing_else_is_in_the_room() -> None:
    folders = {path.name for path in (PACKAGE / "doors").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {door.name for door in DOORS}


@EVERY_DOOR
def test_a_door_has_the_modules_that_doors_have(door: Door) -> None:
    files = {path.name for path in (PACKAGE / "doors" / door.name).iterdir()}
    assert {"__init__.py", "COVERAGE.md", "routes.py", "translate.py", "errors.py"} <= files


@EVERY_DOOR
def test_its_prefix_and_its_vendors_client_are_in_the_docs(door: Door) -> None:
    docs = (ROOT / "docs" / "doors.md").read_text(encoding="utf-8")
    assert f"`{door.prefix}`" in docs
    assert f"src/sandlot/doors/{door.name}/COVERAGE.md" in docs


@EVERY_DOOR
def test_whoever_moves_finds_how(door: Door) -> None:
    page = (ROOT / "docs" / "howto" / f"move-from-{door.name}.md").read_text(encoding="utf-8")
    assert f":PORT{door.prefix}" in page
    assert f"src/sandlot/doors/{door.name}/COVERAGE.md" in page
    assert f"howto/move-from-{door.name}.md" in (ROOT / "docs" / "doors.md").read_text(encoding="utf-8")
