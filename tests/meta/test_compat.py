"""Every compatibility package lists its vendor's calls in one table (COVERAGE.md) that agrees with its routes and tests."""

from __future__ import annotations

import re

from fastapi.routing import APIWebSocketRoute
from starlette.routing import Route

from sandlot.compat.vendor import VendorApi
from sandlot.server.vendors import VENDORS
from tests.meta.tree import PACKAGE, ROOT

ROW = re.compile(
    r"^\| `(?P<method>[A-Z]+) (?P<path>/[^`]*)` \| (?P<supported>yes|no) \| (?P<since>\d+\.\d+\.\d+) \| (?P<how>[^|]+) \| (?P<tests>[^|]+) \|$",
    re.MULTILINE,
)
FILES = ("__init__.py", "COVERAGE.md", "routes.py", "translate.py", "errors.py")
"""Files of every package. A vendor with one protocol also has schemas.py."""
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(vendor: VendorApi) -> list[re.Match[str]]:
    return list(ROW.finditer((PACKAGE / "compat" / vendor.name / "COVERAGE.md").read_text(encoding="utf-8")))


def test_coverage_tables_have_every_route_and_no_other() -> None:
    wrong = {}
    for vendor in VENDORS:
        routes = [*vendor.router.routes, *(vendor.root_router.routes if vendor.root_router is not None else ())]
        http = [(method, route.path) for route in routes if isinstance(route, Route) for method in route.methods or ()]
        sockets = [("WS", route.path) for route in routes if isinstance(route, APIWebSocketRoute)]
        if difference := {(row["method"], row["path"]) for row in rows(vendor)} ^ {*http, *sockets}:
            wrong[vendor.name] = difference
    assert wrong == {}


def test_rows_name_tests_and_supported_calls_a_test_by_the_vendors_client() -> None:
    wrong = []
    for vendor in VENDORS:
        for row in rows(vendor):
            named = TEST.findall(row["tests"])
            missing = [
                f"{path}::{name}"
                for path, name in named
                if not (ROOT / path).is_file() or not re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
            ]
            by_client = any(path.startswith(f"tests/compat/{vendor.name}/") for path, _ in named)
            if not named or missing or (row["supported"] == "yes" and not by_client):
                wrong.append((vendor.name, row["method"], row["path"], missing or "no test, or none with the vendor's client"))
    assert wrong == []


def test_compatibility_packages_are_complete_mounted_and_documented() -> None:
    folders = {path.name for path in (PACKAGE / "compat").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {vendor.name for vendor in VENDORS}
    overview, wrong = (ROOT / "docs" / "explanation" / "compatibility-apis.md").read_text(encoding="utf-8"), []
    for vendor in VENDORS:
        files = {path.name for path in (PACKAGE / "compat" / vendor.name).iterdir()}
        wrong += [f"{vendor.name}/{file}" for file in FILES if file not in files]
        guide = (ROOT / "docs" / "how-to" / f"move-from-{vendor.name}.md").read_text(encoding="utf-8")
        coverage = f"src/sandlot/compat/{vendor.name}/COVERAGE.md"
        wrong += [
            f"docs/explanation/compatibility-apis.md: {text}"
            for text in (f"`{vendor.prefix}`", coverage, f"how-to/move-from-{vendor.name}.md")
            if text not in overview
        ]
        wrong += [f"move-from-{vendor.name}.md: {text}" for text in (f":PORT{vendor.prefix}", coverage) if text not in guide]
    assert wrong == []
