"""The API's document is whole. test_generated.py checks that the file is what the service answers with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fastapi.routing import iter_route_contexts

from sandlot.server.app import create_routes
from sandlot.server.openapi import TAGS
from sandlot.server.vendors import VENDORS
from sandlot.web.auth import OPEN_PATHS
from sandlot.web.errors import MEDIA_TYPE
from tests.meta.tree import ROOT

DOCUMENT: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))
OPERATIONS = [(f"{method} {path}", path, operation) for path, operations in DOCUMENT["paths"].items() for method, operation in operations.items()]
NOT_IN_IT = re.compile(
    "|".join(
        [
            r"/|/openapi\.json|/docs(/.*)?",
            *(f"{vendor.prefix}(/.*)?" for vendor in VENDORS),
            *(re.escape(getattr(route, "path", "")) for vendor in VENDORS if vendor.root_router is not None for route in vendor.root_router.routes),
        ]
    )
)
"""The pages of the document itself, and the compatibility APIs, which the vendors describe."""
ID = re.compile(r"[a-z]+(_[a-z]+)+")
MUTE = (
    "Beside this test, `.venv/bin/python scripts/openapi.py` writes docs/openapi.json anew after every change of a route; commit it with the change."
)


def test_every_route_is_in_the_document() -> None:
    missing = []
    for route in iter_route_contexts(create_routes().routes):
        path = route.path_format or route.path or ""
        if NOT_IN_IT.fullmatch(path):
            continue
        missing += [f"{method} {path}" for method in route.methods or {"GET"} if method.lower() not in DOCUMENT["paths"].get(path, {})]
    assert missing == [], MUTE


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for operations in DOCUMENT["paths"].values() for operation in operations.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if ID.fullmatch(name) is None] == []


def test_operations_are_documented() -> None:
    wrong = []
    for name, path, operation in OPERATIONS:
        parameters = operation.get("parameters", ())
        in_path = {each["name"] for each in parameters if each["in"] == "path"}
        checks = {
            "has one tag of sandlot.server.openapi.TAGS": len(operation["tags"]) == 1 and set(operation["tags"]) <= set(TAGS),
            "has a summary of one line": operation["summary"] and "\n" not in operation["summary"],
            "has a docstring": bool(operation["description"]),
            "needs a key unless its path is open": (operation.get("security") == []) == (path in OPEN_PATHS),
            "describes its parameters (Field, Path or sandlot.server.openapi.PARAMETERS)": all(each.get("description") for each in parameters),
            "has the parameters of its path": set(re.findall(r"{(\w+)}", path)) == in_path,
        }
        wrong += [f"{name}: {check}" for check, holds in checks.items() if not holds]
    assert wrong == []


def test_responses_of_operations_have_schemas() -> None:
    wrong = []
    for name, _, operation in OPERATIONS:
        responses = operation["responses"]
        checks = {
            "has a successful response": any(status.startswith(("1", "2")) for status in responses),
            "has errors as problem documents": all(list(responses[status]["content"]) == [MEDIA_TYPE] for status in ("4XX", "5XX")),
        }
        for status, response in responses.items():
            content = response.get("content", {})
            checks[f"{status} has a description and X-Request-ID"] = bool(response["description"]) and "X-Request-ID" in response["headers"]
            checks[f"{status} has content"] = bool(content) or status in {"101", "204", "304"}
            for media_type, schemas in content.items():
                key = "itemSchema" if media_type in {"text/event-stream", "application/x-ndjson"} else "schema"
                checks[f"{status} {media_type} has a schema"] = bool(schemas.get(key))
        wrong += [f"{name}: {check}" for check, holds in checks.items() if not holds]
    assert wrong == []


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
