"""The table of tools: schemas that the APIs of models accept."""

from __future__ import annotations

import re

import jsonschema_rs

from sandlot.toolset.parameters import parse_arguments
from sandlot.toolset.tools import TOOLS


def test_names_and_descriptions_are_accepted_by_the_apis_of_models() -> None:
    for name, tool in TOOLS.items():
        assert name == tool.name
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name)
        assert 0 < len(tool.description) <= 1024
        assert tool.title


def test_schemas_are_valid_and_agree_with_the_check_of_arguments() -> None:
    for tool in TOOLS.values():
        for schema in (tool.input_schema, tool.strict_schema):
            assert jsonschema_rs.meta.is_valid(schema)
            assert {each["type"] if isinstance(each["type"], str) else each["type"][0] for each in schema["properties"].values()} <= {
                "string",
                "integer",
                "number",
                "boolean",
                "array",
            }
        sample = {each.name: _sample(each.type) for each in tool.parameters if each.required}
        jsonschema_rs.Draft202012Validator(tool.input_schema).validate(sample)
        jsonschema_rs.Draft202012Validator(tool.strict_schema).validate({each.name: None for each in tool.parameters} | sample)
        assert parse_arguments(tool.parameters, sample).keys() == {each.name for each in tool.parameters}


def test_defaults_of_optional_parameters_are_named_in_their_descriptions() -> None:
    for tool in TOOLS.values():
        for each in tool.parameters:
            assert each.required or "Default: " in each.description, f"{tool.name}: {each.name}"
            if isinstance(each.default, str | int | float) and not isinstance(each.default, bool) and each.default != ".":
                assert f"Default: {each.default:g}." in each.description if isinstance(each.default, float) else str(each.default) in each.description


def _sample(kind: str) -> object:
    return {"string": "x", "integer": 1, "number": 1.0, "boolean": True, "array": ["x"]}[kind]
