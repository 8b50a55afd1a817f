"""The API's document: whole, and the same as what the service answers with. That it is fresh is checked by test_generated.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from sandlot.model.errors import CODES
from sandlot.server.app import DOORS, create_routes
from sandlot.server.document import TAGS, document
from sandlot.web.auth import OPEN_PATHS
from sandlot.web.errors import MEDIA_TYPE
from tests.meta.tree import ROOT

APP = create_routes()
DOCUMENT = document(APP.routes)
OPERATIONS = [
    pytest.param(path, operation, id=f"{method} {path}") for path, operations in DOCUMENT["paths"].items() for method, operation in operations.items()
]
NOT_IN_IT = re.compile(
    "|".join(
        [
            r"/openapi\.json|/docs(/.*)?",
            *(f"{door.prefix}(/.*)?" for door in DOORS),
            *(re.escape(getattr(route, "path", "")) for door in DOORS if door.at_root is not None for route in door.at_root.routes),
        ]
    )
)
"""The pages of the document itself, and the vendors' doors, whose routes are the vendors' to describe."""
ID = re.compile(r"[a-z]+(_[a-z]+)+")
MUTE = (
    "Beside this test, `.venv/bin/python scripts/openapi.py` writes docs/openapi.json anew after every change of a route; commit it with the change."
)


def test_every_route_is_in_the_document() -> None:
    missing = []
    for route in iter_route_contexts(APP.routes):
        path = route.path_format or route.path or ""
        if NOT_IN_IT.fullmatch(path):
            continue
        missing += [f"{method} {path}" for method in route.methods or {"GET"} if method.lower() not in DOCUMENT["paths"].get(path, {})]
    assert missing == [], MUTE


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for operations in DOCUMENT["paths"].values() for operation in operations.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if ID.fullmatch(name) is None] == []


@pytest.mark.parametrize("path, operation", OPERATIONS)
def test_an_operation_is_documented(path: str, operation: dict[str, Any]) -> None:
    assert len(operation["tags"]) == 1
    assert set(operation["tags"]) <= set(TAGS), "describe the tag in sandlot.server.document.TAGS"
    assert operation["summary"]
    assert "\n" not in operation["summary"]
    assert operation["description"], "the route's function has no docstring"
    assert (operation.get("security") == []) == (path in OPEN_PATHS)
    mute = [each["name"] for each in operation.get("parameters", ()) if not each.get("description")]
    assert mute == [], "describe them by Field(description=...) or Path(description=...), or in sandlot.server.document.PARAMETERS"
    named = set(re.findall(r"{(\w+)}", path))
    assert {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"} == named


@pytest.mark.parametrize("path, operation", OPERATIONS)
def test_an_operations_answers_have_schemas(path: str, operation: dict[str, Any]) -> None:
    good = {status: answer for status, answer in operation["responses"].items() if status.startswith(("1", "2"))}
    assert good, path
    assert {status: list(operation["responses"][status]["content"]) for status in ("4XX", "5XX")} == {"4XX": [MEDIA_TYPE], "5XX": [MEDIA_TYPE]}
    for status, answer in operation["responses"].items():
        assert answer["description"]
        assert "X-Request-ID" in answer["headers"]
        for media_type, content in answer.get("content", {}).items():
            assert content.get("itemSchema" if media_type in {"text/event-stream", "application/x-ndjson"} else "schema"), (status, media_type)
        assert answer.get("content") or status in {"101", "204", "304"}, status


def test_every_reference_leads_somewhere() -> None:
    known = {f"#/components/{kind}/{name}" for kind, named in DOCUMENT["components"].items() for name in named}
    assert set(_references(DOCUMENT)) <= known


def test_a_models_fields_say_what_their_names_do_not() -> None:
    """Bodies and queries: whoever writes a request has nothing but the document."""
    mute = [
        f"{name}.{field}"
        for name, model in DOCUMENT["components"]["schemas"].items()
        if name.endswith("Body")
        for field, schema in model.get("properties", {}).items()
        if not (schema.get("description") or "$ref" in schema)
    ]
    assert mute == []


def test_the_guide_lists_every_code_with_its_status() -> None:
    guide = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = {code: (int(status), again == "yes") for code, status, again in re.findall(r"^\| `(\w+)` \| (\d+) \| (\w*) ?\|", guide, re.MULTILINE)}
    assert listed == {str(code): told for code, told in CODES.items()}


def _references(part: object) -> Iterator[str]:
    if isinstance(part, dict):
        for name, value in part.items():
            if name == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)
