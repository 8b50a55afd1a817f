"""Every field of a vendor's requests has an effect that a test shows, or is refused: a table in COVERAGE.md ("Fields") names the test.

The fields are those of the request and query models of the vendor's package, which refuse unknown fields.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from functools import cache
from typing import TypeGuard

from sandlot.compat.vendor import VendorApi
from sandlot.server.vendors import VENDORS
from sandlot.web.models import QueryModel, RequestModel
from tests.meta.test_compat import TEST
from tests.meta.tree import PACKAGE, ROOT

FIELD = re.compile(
    r"^\| `(?P<body>\w+)` \| `(?P<field>[^`]+)` \| (?P<word>works|refused) \| (?P<how>[^|]*) \| (?P<tests>[^|]+) \|$",
    re.MULTILINE,
)


def request_fields(vendor: VendorApi) -> set[tuple[str, str]]:
    """Return (model, field) of all requests of a vendor, by the names in the API. An inherited field is named once, by the model that defines it."""
    package = importlib.import_module(f"sandlot.compat.{vendor.name}")
    names = [package.__name__, *(each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))]
    bodies = {each for name in names for each in vars(importlib.import_module(name)).values() if _is_body(each, package.__name__)}
    fields = ((body, name) for body in bodies for name in vars(body)["__annotations__"] if name in body.model_fields)
    return {(body.__name__, body.model_fields[name].alias or name) for body, name in fields}


def _is_body(each: object, package: str) -> TypeGuard[type[RequestModel | QueryModel]]:
    return (
        isinstance(each, type)
        and issubclass(each, (RequestModel, QueryModel))
        and each.__module__.startswith(package)
        and "__annotations__" in vars(each)
    )


def rows(vendor: VendorApi) -> list[re.Match[str]]:
    """Return the rows of the table."""
    return list(FIELD.finditer((PACKAGE / "compat" / vendor.name / "COVERAGE.md").read_text(encoding="utf-8")))


@cache
def functions(path: str) -> dict[str, str]:
    """Return the tests of a module: name -> text, decorators included."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        each.name: "\n".join(lines[min([each.lineno, *(one.lineno for one in each.decorator_list)]) - 1 : each.end_lineno])
        for each in ast.walk(ast.parse(text))
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def test_field_tables_have_every_field_and_no_other() -> None:
    wrong = {}
    for vendor in VENDORS:
        listed = [(row["body"], row["field"]) for row in rows(vendor)]
        if len(listed) != len(set(listed)) or set(listed) != request_fields(vendor):
            wrong[vendor.name] = set(listed) ^ request_fields(vendor) or "a field is listed twice"
    assert wrong == {}


def test_fields_name_tests_and_supported_fields_a_test_by_the_vendors_client() -> None:
    """A test mentions a field by its name, or by a word in backquotes of its row, such as the name in the vendor's client."""
    wrong = []
    for vendor in VENDORS:
        for row in rows(vendor):
            named, words = TEST.findall(row["tests"]), {row["field"], *re.findall(r"`([^`]+)`", row["how"])}
            silent = [
                f"{path}::{name}"
                for path, name in named
                if not (ROOT / path).is_file() or not any(word in functions(path).get(name, "") for word in words)
            ]
            by_client = any(path.startswith(f"tests/compat/{vendor.name}/") for path, _ in named)
            unexplained = row["word"] == "refused" and not row["how"].strip()
            if not named or silent or unexplained or (row["word"] == "works" and not by_client):
                wrong.append((vendor.name, row["body"], row["field"], silent or "no test, none with the vendor's client, or no reason"))
    assert wrong == []
