"""Only values cross the node boundary: built-in types, types of ``sandlot.model`` and a few of the standard library.

Unit tests of the surface above it use the scripted node, unless they need behaviour.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.ids import NodeId
from tests.meta.tree import ROOT, modules, name

MODULES = {"builtins", "types", "typing", "collections.abc", "contextlib", "datetime"}
"""Modules whose types may cross, besides ``sandlot.model``; ``types`` for ``None``."""
CORE_ONLY = {
    "code": {"start"},
    "processes": {"follow_in", "start"},
}
"""Service -> operations on a live sandbox, for programs, installations and terminals inside of core. Nothing above core calls them: the
import contract ``node-boundary`` keeps live sandboxes out of reach."""

SURFACE = ("tests/unit/server", "tests/unit/web", "tests/unit/compat")
IN_MEMORY = ("sandlot.testing.memory.", "tests.support.node.")
"""Modules of the node in memory, which unit tests of the surface do not import."""
NEEDS_BEHAVIOUR = {
    "tests/unit/server/test_composition.py": "its subject is a whole service, built on a driver",
    "tests/unit/server/test_faults.py": "its subject is failures of drivers and guests, as clients of the service read them",
    "tests/unit/server/test_user_templates.py": "its subject is which of the stored templates and builds a name means",
    "tests/unit/web/test_websocket.py": "its subject is the order and the backpressure of bytes between a client and a program in a sandbox",
}
"""Test module -> reason why it imports the node in memory."""


def services(node: type) -> dict[str, type]:
    """Return the services of a node by the name of the field. A field of ``sandlot.model`` is a value, not a service."""
    hints = typing.get_type_hints(node)
    return {each.name: hints[each.name] for each in fields(node) if not crosses(hints[each.name])}


def operations(service: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods and properties of a service, inherited ones included."""
    for operation, member in inspect.getmembers_static(service):
        if not operation.startswith("_"):
            if isinstance(member, property) and member.fget is not None:
                yield operation, member.fget
            elif isinstance(member, staticmethod | classmethod | types.FunctionType):
                yield operation, inspect.unwrap(getattr(service, operation))


def types_of(hint: Any) -> Iterator[Any]:  # noqa: ANN401 - whatever stands in an annotation
    """Yield the types (of ``typing.NewType`` too) that an annotation names, through unions, containers and signatures of callables."""
    if isinstance(hint, list | tuple):  # arguments of a callable
        for each in hint:
            yield from types_of(each)
    elif isinstance(hint, typing.TypeVar):
        yield from types_of([hint.__bound__ or object, *hint.__constraints__])
    elif typing.get_origin(hint) is Literal:
        yield from (type(value) for value in typing.get_args(hint))
    elif (origin := typing.get_origin(hint)) is not None:
        yield from types_of([origin, *typing.get_args(hint)])
    elif isinstance(hint, type | typing.NewType):
        yield hint


def crosses(type_: type | typing.NewType) -> bool:
    """Return True if a type may cross the boundary."""
    return type_.__module__ in MODULES or f"{type_.__module__}.".startswith("sandlot.model.")


def foreign(operation: Callable[..., Any]) -> set[str]:
    """Return the types in the signature of an operation that must not cross the boundary."""
    hints = typing.get_type_hints(operation)
    return {f"{each.__module__}.{each.__qualname__}" for hint in hints.values() for each in types_of(hint) if not crosses(each)}


def offenders(node: type) -> dict[str, dict[str, set[str]]]:
    """Return service -> operation -> types that must not cross the boundary."""
    found = {
        service: {operation: bad for operation, function in operations(type_) if (bad := foreign(function))}
        for service, type_ in services(node).items()
    }
    return {service: bad for service, bad in found.items() if bad}


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_values_cross_the_boundary() -> None:
    found = [
        f"{service}.{operation}: {', '.join(sorted(bad))}"
        for service, bad_operations in offenders(Node).items()
        for operation, bad in bad_operations.items()
        if operation not in CORE_ONLY.get(service, set())
    ]
    assert found == []


def test_every_exception_is_needed() -> None:
    found = offenders(Node)
    unneeded = [f"{service}.{each}" for service, rows in CORE_ONLY.items() for each in rows if each not in found.get(service, {})]
    assert unneeded == []


def test_unit_tests_of_the_surface_do_not_import_the_node_in_memory() -> None:
    importers = {
        name(path) for folder in SURFACE for path in modules(ROOT / folder) if any(f"{each}.".startswith(IN_MEMORY) for each in imports(path))
    }
    assert importers == NEEDS_BEHAVIOUR.keys()


def test_types_are_found_in_containers_callables_and_properties() -> None:
    class Inherited:
        def inherited(self) -> Path: ...  # type: ignore[empty-body]

    class Service(Inherited):
        def plain(self, principal: Principal, at: datetime) -> AbstractAsyncContextManager[None]: ...  # type: ignore[empty-body]

        async def live(self, principal: Principal) -> Mapping[str, Sequence[Sandbox | None]]: ...  # type: ignore[empty-body]

        def called(self, check: Callable[[Sandbox], bool]) -> None: ...

        @property
        def shown(self) -> Literal["a"] | Path: ...  # type: ignore[empty-body]

        def _private(self, sandbox: Sandbox) -> None: ...

    @dataclass
    class Small:
        id: NodeId
        buffers: BufferBudget
        service: Service

    Small.__annotations__["service"] = Service  # a local class has no name in the module
    live = {"sandlot.core.sandbox.Sandbox"}
    assert offenders(Small) == {"service": {"live": live, "called": live, "inherited": {"pathlib.Path"}, "shown": {"pathlib.Path"}}}
