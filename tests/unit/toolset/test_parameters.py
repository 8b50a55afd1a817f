"""Arguments of tools: what models send, and the messages that they get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandlot.toolset.parameters import MAX_ARGUMENT_BYTES, ArgumentsError, Parameter, object_schema, parse_arguments
from tests.support.cases import cases

PARAMETERS = (
    Parameter("text", "string", "A text.", required=True, minimum=1),
    Parameter("count", "integer", "A number.", default=3, minimum=1, maximum=9),
    Parameter("seconds", "number", "A time.", default=1.5, maximum=100),
    Parameter("flag", "boolean", "A choice.", default=False),
    Parameter("names", "array", "Names.", minimum=1),
    Parameter("kind", "string", "A kind.", default="a", choices=("a", "b")),
)


@cases(
    "raw",
    ['{"text": "x"}', b'{"text": "x", "names": null}', {"text": "x"}, {"text": "x", "count": None, "flag": None, "seconds": None, "kind": None}],
)
def test_missing_and_null_arguments_have_their_defaults(raw: object) -> None:
    assert parse_arguments(PARAMETERS, raw) == {"text": "x", "count": 3, "seconds": 1.5, "flag": False, "names": None, "kind": "a"}


@cases("raw", [None, "", b" ", {}, "{}"])
def test_tool_without_parameters_accepts_no_arguments(raw: object) -> None:
    assert parse_arguments((), raw) == {}


@cases(
    "raw, word",
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "JSON object"),
        ("7", "JSON object"),
        (3.5, "JSON object"),
        ({}, "`text` is missing"),
        ({"text": None}, "`text` is missing"),
        ({"text": 1}, "`text` must be a text, but it is 1"),
        ({"text": ""}, "at least 1"),
        ({"text": "x", "other": 1}, 'no argument "other"; the arguments are text, count'),
        ({"text": "x", 7: 1}, "no argument 7"),
        ({"text": "x", "count": "3"}, "`count` must be an integer"),
        ({"text": "x", "count": True}, "`count` must be an integer"),
        ({"text": "x", "count": 3.5}, "`count` must be an integer"),
        ({"text": "x", "count": 0}, "at least 1 and at most 9, but it is 0"),
        ({"text": "x", "count": 10**400}, "`count` must be at least 1"),
        ({"text": "x", "seconds": 101}, "at most 100"),
        ('{"text": "x", "seconds": NaN}', "`seconds` must be"),
        ('{"text": "x", "seconds": Infinity}', "`seconds` must be"),
        ({"text": "x", "flag": "yes"}, "`flag` must be true or false"),
        ({"text": "x", "names": "numpy"}, '`names` must be a list of texts, but it is "numpy"'),
        ({"text": "x", "names": []}, "number of items"),
        ({"text": "x", "names": ["a", 1]}, "one of its items"),
        ({"text": "x", "kind": "c"}, "one of a, b"),
        ({"text": "\ud800"}, "surrogate"),
        ('{"text": "\\ud800"}', "surrogate"),
        ('"\ud800"', "JSON object"),
        ({"text": "x", "names": [[[[[[[[[[[[[[[[[[[[[[["a"]]]]]]]]]]]]]]]]]]]]]]]}, "nested too deeply"),
    ],
)
def test_wrong_arguments_are_explained_to_the_model(raw: object, word: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(PARAMETERS, raw)
    assert word in str(caught.value)
    assert str(caught.value).encode()


@cases("wrap", [lambda text: json.dumps({"text": text}), lambda text: {"text": text}, lambda text: json.dumps({"text": text}).encode()])
def test_two_megabytes_of_arguments_are_refused_with_their_size(wrap: Any) -> None:  # noqa: ANN401 - a function
    with pytest.raises(ArgumentsError, match=r"2,\d{3},\d{3} bytes; at most 1,048,576"):
        parse_arguments(PARAMETERS, wrap("x" * 2 * MAX_ARGUMENT_BYTES))


def test_long_wrong_value_is_shortened() -> None:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(PARAMETERS, {"text": "x", "kind": "y" * 10_000})
    assert len(str(caught.value)) < 200


def test_schema_has_types_ranges_and_choices() -> None:
    assert object_schema(PARAMETERS) == {
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "A text.", "minLength": 1},
            "count": {"type": "integer", "description": "A number.", "minimum": 1, "maximum": 9},
            "seconds": {"type": "number", "description": "A time.", "maximum": 100},
            "flag": {"type": "boolean", "description": "A choice."},
            "names": {"type": "array", "description": "Names.", "items": {"type": "string"}, "minItems": 1},
            "kind": {"type": "string", "description": "A kind.", "enum": ["a", "b"]},
        },
        "required": ["text"],
        "additionalProperties": False,
    }


def test_strict_schema_requires_each_property_and_lets_optional_ones_be_null() -> None:
    schema = object_schema(PARAMETERS, strict=True)
    assert schema["required"] == [*schema["properties"]]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["text"]["type"] == "string"
    assert schema["properties"]["count"]["type"] == ["integer", "null"]
    assert schema["properties"]["kind"]["enum"] == ["a", "b", None]
