"""Every field that a door takes does something that a test sees, or is refused: one table of each door (COVERAGE.md, "Fields") says which test.

What a door takes are the bodies and queries of its package: they refuse every field that they do not have.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from functools import cache
from typing import TypeGuard

from sandlot.doors.door import Door
from sandlot.web.bodies import Body, Query
from tests.meta.test_doors import EVERY_DOOR, TEST
from tests.meta.tree import PACKAGE, ROOT

FIELD = re.compile(
    r"^\| `(?P<body>\w+)` \| `(?P<field>[^`]+)` \| (?P<word>works|refused) \| (?P<how>[^|]*) \| (?P<tests>[^|]+) \|$",
    re.MULTILINE,
)


def taken(door: Door) -> set[tuple[str, str]]:
    """(body, field) of all that a door takes, by the names that the wire has; what a body has of another one is said once."""
    package = importlib.import_module(f"sandlot.doors.{door.name}")
    names = [package.__name__, *(each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))]
    bodies = {each for name in names for each in vars(importlib.import_module(name)).values() if _is_body(each, package.__name__)}
    fields = ((body, name) for body in bodies for name in vars(body)["__annotations__"] if name in body.model_fields)
    return {(body.__name__, body.model_fields[name].alias or name) for body, name in fields}


def _is_body(each: object, package: str) -> TypeGuard[type[Body | Query]]:
    return isinstance(each, type) and issubclass(each, (Body, Query)) and each.__module__.startswith(package) and "__annotations__" in vars(each)


def rows(door: Door) -> list[re.Match[str]]:
    """The table."""
    return list(FIELD.finditer((PACKAGE / "doors" / door.name / "COVERAGE.md").read_text(encoding="utf-8")))


@cache
def functions(path: str) -> dict[str, str]:
    """The tests of a module: name -> their text, decorators included."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        each.name: "\n".join(lines[min([each.lineno, *(one.lineno for one in each.decorator_list)]) - 1 : each.end_lineno])
        for each in ast.walk(ast.parse(text))
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


@EVERY_DOOR
def test_the_table_has_every_field_and_no_other(door: Door) -> None:
    said = [(row["body"], row["field"]) for row in rows(door)]
    assert len(said) == len(set(said))
    assert set(said) == taken(door)


@EVERY_DOOR
def test_a_field_names_tests_that_speak_of_it_and_one_that_works_is_seen_by_its_vendors_client(door: Door) -> None:
    """A test speaks of a field by its name, or by a word in backquotes of its row: what the vendor's client calls it."""
    for row in rows(door):
        named = TEST.findall(row["tests"])
        assert named, row[0]
        words = {row["field"], *re.findall(r"`([^`]+)`", row["how"])}
        for path, name in named:
            there = functions(path)
            assert name in there, f"{path} has no {name}"
            assert any(word in there[name] for word in words), f"{path}::{name} says nothing of {sorted(words)}"
        if row["word"] == "works":
            assert any(path.startswith(f"tests/compat/{door.name}/") for path, _ in named), row[0]
        else:
            assert row["how"].strip(), f"{row[0]}: why is it refused, or what of it is?"
