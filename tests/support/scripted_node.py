"""A node without behaviour: each operation returns what a test has scripted, and each call is recorded.

Tests of the HTTP surface use it where their subject is translation, errors or streaming. It needs no conformance suite, because the test says what
each operation returns; the names and signatures of the operations are those of the real node. Behaviour is tested with the real node.
"""

from __future__ import annotations

import asyncio
import inspect
import types
import typing
from collections import defaultdict, deque
from collections.abc import Awaitable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from sandlot.core.node import Node
from sandlot.model.access import OPERATOR
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.executions import ProcessInfo
from sandlot.model.files import Entry
from sandlot.model.ids import NodeId, ProcessId, new_sandbox_id
from sandlot.model.sandboxes import SandboxInfo
from sandlot.model.specs import DEFAULT_TIMEOUT_S, MIB, SandboxSpec
from sandlot.model.states import State

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """One call of an operation.

    Args:
        operation: Name, such as ``files.read``.
        arguments: Every argument by its name, defaults included.
    """

    operation: str
    arguments: dict[str, Any]

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any argument
        return self.arguments[name]


class ScriptedNode:
    """A node whose operations return scripted results.

    Args:
        node: Type of the node.
        real: Field of the node -> object that takes the place of a scripted service.

    Attributes:
        calls: All calls, in order.
        problems: Calls of operations that have no result left or do not exist, and calls with wrong arguments. The caller gets an
            ``AssertionError``, which the HTTP frame turns into status 500; :meth:`check` fails the test.
    """

    def __init__(self, node: type[Node] = Node, **real: Any) -> None:  # noqa: ANN401 - any service
        hints = typing.get_type_hints(node)
        values: dict[str, Any] = {"id": NodeId("node"), "buffers": BufferShares(64 * MIB), **real}
        self._types = {each.name: hints[each.name] for each in fields(node) if each.name not in values}
        self._results: dict[str, deque[Any]] = defaultdict(deque)
        self.services = node(**{**values, **{name: _Service(self, name) for name in self._types}})
        self.calls: list[Call] = []
        self.problems: list[str] = []

    def script(self, operation: str, *results: Any) -> None:  # noqa: ANN401 - results of any operation
        """Set the results of the next calls of an operation, one for each call.

        Args:
            operation: Name, such as ``files.read``.
            results: Values. An exception is raised. A future is awaited, and cancelled with its caller. A function is called with the arguments of
                the operation, for instance to read an upload, and a coroutine that it returns is awaited.
        """
        self.member(operation)
        self._results[operation].extend(results)

    def check(self) -> None:
        """Assert that each call was scripted and that each scripted result was used."""
        unused = {operation: list(left) for operation, left in self._results.items() if left}
        assert not self.problems, self.problems
        assert not unused, f"results that no call has taken: {unused}"

    def member(self, operation: str) -> Any:  # noqa: ANN401 - a function or a property
        """Return the definition of an operation in the real service."""
        service, _, name = operation.partition(".")
        found = inspect.getattr_static(self._types.get(service), name, None)
        if name.startswith("_") or not isinstance(found, types.FunctionType | staticmethod | property):
            self.fail(f"{operation} is not an operation of the node")
        return found

    def take(self, operation: str, bound: inspect.BoundArguments) -> Any:  # noqa: ANN401 - the result of any operation
        """Record a call and return its result, or raise the scripted exception."""
        bound.apply_defaults()
        self.calls.append(Call(operation, dict(bound.arguments)))
        if not self._results[operation]:
            self.fail(f"{operation} was called with {bound.arguments}, and has no result left")
        result = self._results[operation].popleft()
        if isinstance(result, BaseException):
            raise result
        return result(**bound.arguments) if isinstance(result, types.FunctionType | types.MethodType) else result

    def fail(self, problem: str) -> typing.NoReturn:
        """Record a problem and raise it."""
        self.problems.append(problem)
        raise AssertionError(problem)


class _Service:
    def __init__(self, node: ScriptedNode, name: str) -> None:
        self._node = node
        self._name = name

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any operation
        operation = f"{self._name}.{name}"
        member = self._node.member(operation)
        if isinstance(member, property):
            return self._node.take(operation, inspect.Signature().bind())
        function = member.__func__ if isinstance(member, staticmethod) else types.MethodType(member, self)
        signature = inspect.signature(function)

        def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - arguments and result of any operation
            try:
                bound = signature.bind(*args, **named)
            except TypeError as error:
                self._node.fail(f"{operation}: {error}")
            return self._node.take(operation, bound)

        async def call_async(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - as above
            result = call(*args, **named)
            return await result if isinstance(result, Awaitable) else result

        return call_async if inspect.iscoroutinefunction(function) else call


class ScriptedStream(Generic[T]):
    """A stream of scripted items, for one consumer. As a duplex, it records what is sent.

    Args:
        items: Items in order. An exception is raised. An ``asyncio.Event`` is waited for.
        attributes: Further attributes, such as the ``entry`` of a download.

    Attributes:
        taken: Number of items that were taken.
        closed: Set by :meth:`aclose`.
        sent: Values that were sent.
        ended: Set by :meth:`end`.
    """

    def __init__(self, *items: T | BaseException | asyncio.Event, **attributes: Any) -> None:  # noqa: ANN401 - attributes of any stream
        self._items = deque(items)
        self.taken = 0
        self.closed = asyncio.Event()
        self.sent: list[Any] = []
        self.ended = asyncio.Event()
        vars(self).update(attributes)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while self._items and not self.closed.is_set():
            item = self._items.popleft()
            if isinstance(item, asyncio.Event):
                await self._either(item)
            elif isinstance(item, BaseException):
                raise item
            else:
                self.taken += 1
                return item
        raise StopAsyncIteration

    async def _either(self, event: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(each.wait()) for each in (event, self.closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def aclose(self) -> None:
        """End the stream; a waiting ``__anext__`` raises ``StopAsyncIteration``."""
        self.closed.set()

    async def send(self, data: Any) -> None:  # noqa: ANN401 - values of any duplex
        """Record a value."""
        self.sent.append(data)

    async def end(self) -> None:
        """Record the end of the values."""
        self.ended.set()


def sandbox_info(**changes: Any) -> SandboxInfo:  # noqa: ANN401 - fields of SandboxInfo
    """Return a running sandbox of the operator without name, which expires after its default timeout."""
    spec = SandboxSpec(id=new_sandbox_id(NodeId("node")))
    created = datetime(2026, 1, 1, 12, tzinfo=UTC)
    values: dict[str, Any] = {
        **{each.name: None for each in fields(SandboxInfo)},
        "spec": spec,
        "owner": OPERATOR.owner,
        "metadata": {},
        "state": State.RUNNING,
        "created_at": created,
        "expires_at": created + timedelta(seconds=DEFAULT_TIMEOUT_S),
        "as_of": created,
    }
    return SandboxInfo(**{**values, **changes})


def entry(path: str = "/workspace/a.txt", **changes: Any) -> Entry:  # noqa: ANN401 - fields of Entry
    """Return a regular file of 5 bytes."""
    values: dict[str, Any] = {"kind": "file", "size": 5, "mode": 0o644, "uid": 1000, "gid": 1000, "modified_ns": 10**18, "target": None}
    return Entry(**{"name": path.rpartition("/")[2], "path": path, **values, **changes})


def process_info(**changes: Any) -> ProcessInfo:  # noqa: ANN401 - fields of ProcessInfo
    """Return a running process without terminal."""
    values = {each.name: None for each in fields(ProcessInfo)}
    numbers = {"pid": 42, "duration_s": 1.0, "stdin_bytes": 0, "stdout_bytes": 0, "stderr_bytes": 0}
    flags = {"running": True, "pty": False, "stdin": False}
    return ProcessInfo(**{**values, "process": ProcessId("0" * 32), "argv": ("sleep", "60"), **numbers, **flags, **changes})
