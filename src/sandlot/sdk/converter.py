"""Conversion of the API's JSON objects to values, with cattrs.

A field that a newer service adds is ignored, and one that an older service lacks has its default. cattrs, whose import takes 13 ms, is imported with
the first response. The code that converts a class is generated when the class is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from sandlot.model.errors import InternalError, SandlotError
from sandlot.sdk.models.executions import LogEntry
from sandlot.sdk.models.files import FileEvent
from sandlot.sdk.models.network import Network
from sandlot.sdk.models.processes import ProcessInfo
from sandlot.sdk.models.programs import ProgramResult
from sandlot.sdk.models.sandboxes import SandboxInfo
from sandlot.sdk.responses import error_from_problem

if TYPE_CHECKING:
    from cattrs import Converter

Json = Mapping[str, Any]
T = TypeVar("T")

RENAMED: Mapping[type, Mapping[str, str]] = {
    ProcessInfo: {"envs": "env"},
    ProgramResult: {"id": "execution"},
}
"""Value -> attribute -> field of the API, where the two have different names."""


def structure(cls: type[T], raw: Json) -> T:
    """Convert an object of the API to a value.

    Raises:
        InternalError: The object lacks a field or has a field of another type.
    """
    try:
        return _converter().structure(raw, cls)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _invalid(cls, error) from error


def structure_list(cls: type[T], response: Json, key: str) -> list[T]:
    """Convert the objects in one field of a response.

    Raises:
        InternalError: The field is not a list of valid objects.
    """
    try:
        hook = _converter().get_structure_hook(cls)
        return [hook(raw, cls) for raw in response[key]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _invalid(cls, error) from error


def _invalid(cls: type, error: Exception) -> InternalError:
    why = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
    return InternalError(
        f"The server returned an invalid {cls.__name__}: {why}.",
        hint="Check that SANDLOT_URL is the address of a Sandlot service, and that the versions of client and service match.",
    )


def _flat_exit(raw: Json) -> Json:
    end = raw.get("exit")
    return raw if end is None else {**raw, "exit_reason": end["reason"], "exit_detail": end.get("detail", ""), "fault": end.get("fault")}


def _file_event(raw: Json) -> Json:
    return {**raw, "kind": raw["event"], "is_dir": raw.get("kind") == "directory"}


def _log_entry(raw: Json) -> Json:
    return {**raw, "omitted_bytes": raw.get("omitted_bytes", raw.get("lost_bytes", 0))}


def _network(raw: Json) -> Json:
    rules: dict[str, list[str]] = {"allow": [], "deny": []}
    for entry in raw.get("entries", ()):
        rules["allow" if entry["allow"] else "deny"].append(entry["rule"])
    return {**raw, **rules}


_PREPARED: Mapping[type, Callable[[Json], Json]] = {SandboxInfo: _flat_exit, FileEvent: _file_event, LogEntry: _log_entry, Network: _network}
"""Value -> function that gives an object of the API the fields of the value."""


def _is_open_enum(type_: object) -> bool:
    """``SandboxState | str`` or ``Fault | str | None``: a newer service may send a value that the enumeration does not have."""
    args = set(get_args(type_)) - {NoneType}
    return len(args) == 2 and str in args and any(isinstance(arg, type) and issubclass(arg, StrEnum) for arg in args)  # noqa: PLR2004


def _is_optional(type_: object) -> bool:
    return len(get_args(type_)) == 2 and NoneType in get_args(type_)  # noqa: PLR2004


def _is_tuple(type_: object) -> bool:
    return get_origin(type_) is tuple


def _open_enum(type_: object) -> Callable[[Any, object], Any]:
    enum = next(arg for arg in get_args(type_) if arg not in {str, NoneType})
    known = {member.value: member for member in enum}
    return lambda value, _: None if value is None else known.get(value) or str(value)


@cache
def _converter() -> Converter:
    from cattrs import Converter  # noqa: PLC0415 - with the first response
    from cattrs.cols import homogenous_tuple_structure_factory  # noqa: PLC0415
    from cattrs.gen import make_dict_structure_fn, override  # noqa: PLC0415

    converter = Converter(detailed_validation=False)

    def value(cls: type) -> Callable[[Any, Any], Any]:
        renamed: dict[str, Any] = {name: override(rename=field) for name, field in RENAMED.get(cls, {}).items()}
        hook: Callable[[Any, Any], Any] = make_dict_structure_fn(cls, converter, _cattrs_detailed_validation=False, **renamed)
        prepared = _PREPARED.get(cls)
        return hook if prepared is None else lambda raw, type_: hook(prepared(raw), type_)

    def optional(type_: object) -> Callable[[Any, Any], Any]:
        inner = next(arg for arg in get_args(type_) if arg is not NoneType)
        hook = converter.get_structure_hook(inner)
        return lambda raw, _: None if raw is None else hook(raw, inner)

    converter.register_structure_hook(datetime, lambda text, _: datetime.fromisoformat(text))
    converter.register_structure_hook(SandlotError, lambda problem, _: error_from_problem(problem))
    converter.register_structure_hook_func(lambda type_: type_ in {Json, Mapping[str, str]}, lambda raw, _: dict(raw))
    converter.register_structure_hook_factory(_is_open_enum, _open_enum)
    converter.register_structure_hook_factory(is_dataclass, value)
    # cattrs looks up the conversion of what is inside an option or a tuple again for each object; these have it prepared.
    converter.register_structure_hook_factory(_is_optional, optional)
    converter.register_structure_hook_factory(_is_tuple, homogenous_tuple_structure_factory)
    return converter
