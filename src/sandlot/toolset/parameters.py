"""Parameters of tools: their JSON Schema, and the check of the arguments that a model has sent.

Invariant: Arguments that pass the check have the types and ranges of the schema, and their texts can be encoded as UTF-8. Everything else is an
:class:`ArgumentsError`, whose message tells the model what to change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_ARGUMENT_BYTES: Final = 1024 * 1024
"""Largest size of all arguments of a call, in bytes of UTF-8."""
_MAX_SHOWN: Final = 60
"""Longest part of a wrong value in a message, in characters."""
_MAX_DEPTH: Final = 20

_TYPES: Final[Mapping[str, tuple[str, tuple[type, ...]]]] = {
    "string": ("a text", (str,)),
    "integer": ("an integer", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "array": ("a list of texts", (list, tuple)),
}
"""JSON type -> description, Python type. The items of a list are texts."""


class ArgumentsError(Exception):
    """The arguments of a call are wrong. The message is for the model."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a tool.

    Args:
        name: Name of the parameter.
        type: ``string``, ``integer``, ``number``, ``boolean`` or ``array`` (of texts).
        description: Description for the model.
        required: True if the model must pass the parameter. Otherwise a missing or null argument has the value of ``default``.
        default: Value of a missing argument. The description names it, because not every API accepts ``default`` in a schema.
        choices: Allowed values of a text; empty: all.
        minimum: Smallest number; for texts and lists, the smallest length.
        maximum: Largest number; for texts and lists, the largest length.
    """

    name: str
    type: str
    description: str
    required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    def schema(self, *, nullable: bool = False) -> dict[str, Any]:
        """Return the JSON Schema of the parameter.

        Args:
            nullable: Also allow null, in place of a missing argument.
        """
        schema: dict[str, Any] = {"type": [self.type, "null"] if nullable else self.type, "description": self.description}
        if self.choices:
            schema["enum"] = [*self.choices, None] if nullable else [*self.choices]
        if self.type == "array":
            schema["items"] = {"type": "string"}
        low, high = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}.get(self.type, ("minimum", "maximum"))
        return schema | {name: bound for name, bound in ((low, self.minimum), (high, self.maximum)) if bound is not None}

    def check(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Return the value of an argument.

        Raises:
            ArgumentsError: The value has the wrong type or is out of range.
        """
        description, kinds = _TYPES[self.type]
        checked: Any = value
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.type != "boolean"):
            raise ArgumentsError(f"`{self.name}` must be {description}, but it is {_shown(value)}.")
        if self.type == "array" and not all(isinstance(item, str) for item in checked):
            raise ArgumentsError(f"`{self.name}` must be {description}, but one of its items is no text.")
        if self.choices and value not in self.choices:
            raise ArgumentsError(f"`{self.name}` must be one of {', '.join(self.choices)}, but it is {_shown(value)}.")
        self._check_range(len(checked) if self.type in {"string", "array"} else checked)
        return value

    def _check_range(self, size: float) -> None:
        low, high = self.minimum, self.maximum
        if (low is None or low <= size) and (high is None or size <= high):  # false for NaN
            return
        what = {"string": "The length of ", "array": "The number of items of "}.get(self.type, "")
        most = "" if high is None else f" and at most {high:g}"
        raise ArgumentsError(f"{what}`{self.name}` must be at least {low or 0:g}{most}, but it is {_shown(size)}.")


def object_schema(parameters: Sequence[Parameter], *, strict: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a tool.

    Args:
        parameters: Parameters of the tool.
        strict: Return the form that OpenAI requires with ``strict: true``: each property is required, and optional ones may be null.
    """
    return {
        "type": "object",
        "properties": {each.name: each.schema(nullable=strict and not each.required) for each in parameters},
        "required": [each.name for each in parameters if strict or each.required],
        "additionalProperties": False,
    }


def parse_arguments(parameters: Sequence[Parameter], raw: object) -> dict[str, Any]:
    """Return the arguments of a call: one value for each parameter.

    Args:
        parameters: Parameters of the tool.
        raw: Arguments as JSON text, or as the value that an SDK has parsed. None and an empty text are no arguments.

    Raises:
        ArgumentsError: The arguments are not JSON, too large, unknown, missing, of the wrong type or out of range.
    """
    arguments = _loaded(raw)
    known = {each.name: each for each in parameters}
    unknown = [name for name in arguments if name not in known]
    if unknown:
        expected = f"the arguments are {', '.join(known)}" if known else "there are no arguments"
        raise ArgumentsError(f"There is no argument {_shown(unknown[0])}; {expected}.")
    missing = [each.name for each in parameters if each.required and arguments.get(each.name) is None]
    if missing:
        raise ArgumentsError(f"The argument `{missing[0]}` is missing.")
    return {name: each.default if arguments.get(name) is None else each.check(arguments[name]) for name, each in known.items()}


def _loaded(raw: object) -> Mapping[Any, Any]:
    if raw is None:
        return {}
    if isinstance(raw, str | bytes):
        _check_size(len(raw) if isinstance(raw, bytes) else len(raw.encode("utf-8", "surrogatepass")))
        try:
            raw = json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ArgumentsError(f"The arguments are not valid JSON: {error}. Send one JSON object.") from None
    if not isinstance(raw, Mapping):
        raise ArgumentsError(f"The arguments must be a JSON object, but they are {_shown(raw)}.")
    _check_size(_size(raw))
    return raw


def _size(value: object, depth: int = 0) -> int:
    """Return the size of the texts in a JSON value, in bytes of UTF-8."""
    if depth > _MAX_DEPTH:
        raise ArgumentsError("The arguments are nested too deeply.")
    if isinstance(value, str):
        try:
            return len(value.encode())
        except UnicodeEncodeError:
            raise ArgumentsError("A text in the arguments is not valid Unicode: it has half of a surrogate pair.") from None
    if isinstance(value, Mapping):
        return sum(_size(key, depth + 1) + _size(item, depth + 1) for key, item in value.items())
    return sum(_size(item, depth + 1) for item in value) if isinstance(value, list | tuple) else 1


def _check_size(size: int) -> None:
    if size > MAX_ARGUMENT_BYTES:
        raise ArgumentsError(
            f"The arguments have {size:,} bytes; at most {MAX_ARGUMENT_BYTES:,} are allowed. "
            "Split the work over several calls, or let a program in the sandbox create the data."
        )


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, RecursionError):
        text = type(value).__name__
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
