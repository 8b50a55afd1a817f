"""The sandbox of a conversation, and the tools that a model calls in it.

Invariants:
- Building an object does no I/O. The first call that needs the sandbox creates it, once, whatever runs at the same time.
- A sandbox that was passed in stays with its caller. A sandbox that was created here ends with the conversation.
- A sandbox that has ended is answered to the model as an error, and the next call gets a new sandbox unless the sandbox was passed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from sandlot.model.errors import SANDBOX_GONE, ConflictError, InvalidRequestError, SandlotError
from sandlot.sdk import AsyncClient, AsyncSandbox, Client, Sandbox
from sandlot.sdk._async import backend
from sandlot.sdk.config import Target
from sandlot.toolset.backend import OnOutput, ToolBackend
from sandlot.toolset.backends.sdk import SdkBackend
from sandlot.toolset.output import MAX_OUTPUT_CHARS, Text, ToolResult, invalid_call
from sandlot.toolset.tools import TOOLS, Tool
from sandlot.toolset.toolset import Toolset

T = TypeVar("T")

TIMEOUT_S: Final = 3600.0
"""Default of ``timeout`` of a sandbox that a conversation creates. Its end ends the sandbox earlier."""
MAX_PARALLEL_CALLS: Final = 8
"""Number of calls of one answer that run at the same time."""

CUT_OFF: Final = "The call was cut off, because the answer reached the limit of output tokens. Send less at once."


class ConversationSandbox:
    """One sandbox for a conversation.

    Args:
        sandbox: Sandbox to use. None: create one, or connect to ``attach``.
        attach: Id of a sandbox to connect to.
        options: Arguments of ``AsyncSandbox.create``; of these, ``client``, ``url`` and ``api_key`` also apply to ``attach``.
    """

    def __init__(self, sandbox: AsyncSandbox | None = None, *, attach: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        if sandbox is not None and options:
            raise InvalidRequestError("Options for a new sandbox cannot be combined with `sandbox`.", hint=f"Leave out {', '.join(options)}.")
        self._options = {"timeout": TIMEOUT_S, **(options or {})}
        self._sandbox = sandbox
        self._lock = anyio.Lock()
        self._is_closed = False
        self._attach = attach
        self.is_own = sandbox is None and attach is None
        """True if the sandbox is created here."""

    @property
    def present(self) -> AsyncSandbox | None:
        """The sandbox; None before it is created."""
        return self._sandbox

    async def get(self) -> AsyncSandbox:
        """Return the sandbox; the first call creates it."""
        async with self._lock:
            if self._sandbox is not None:
                return self._sandbox
            if self._is_closed:
                raise ConflictError("The conversation has ended, and its sandbox with it.", hint="Start another conversation.")
            if self._attach is not None:
                connection = {name: self._options[name] for name in ("client", "url", "api_key") if name in self._options}
                self._sandbox = attached = await AsyncSandbox.connect(self._attach, **connection)
                return attached
            with anyio.CancelScope(shield=True):  # a sandbox whose creation was cancelled would live until its timeout
                self._sandbox = created = await AsyncSandbox.create(**self._options)
            return created

    async def forget(self, sandbox_id: str) -> None:
        """Use a new sandbox from now on, if the present one has this id and was created here."""
        if self.is_own and self._sandbox is not None and self._sandbox.id == sandbox_id:
            ended, self._sandbox = self._sandbox, None
            await ended.aclose()

    async def aclose(self) -> None:
        """End the sandbox if it was created here."""
        if not self.is_own:
            return
        with backend.shielded():
            async with self._lock:
                self._is_closed = True
                ended, self._sandbox = self._sandbox, None
                if ended is not None:
                    try:
                        await ended.kill()
                    except SandlotError as error:
                        if error.code not in SANDBOX_GONE:
                            raise


class AsyncSandboxTools:
    """Tools of one sandbox, for any model: ``schemas`` describes the tools, and :meth:`call` runs a call.

    ``async with AsyncSandboxTools() as tools:`` ends the sandbox together with the block.

    Args:
        sandbox: Sandbox to use; it is not ended. Default: the first call creates one.
        tools: Names of the tools to offer. Default: all.
        images: Return images; False saves them in the sandbox and returns their paths.
        max_output_chars: Largest text of a result in characters; longer output is cut in the middle.
        options: Arguments of ``AsyncSandbox.create``, such as ``template`` or ``network``. Default of ``timeout``: an hour.

    Raises:
        InvalidRequestError: A tool does not exist, or options were passed with a sandbox.
    """

    def __init__(
        self,
        sandbox: AsyncSandbox | None = None,
        *,
        tools: Iterable[str] | None = None,
        images: bool = True,
        max_output_chars: int = MAX_OUTPUT_CHARS,
        **options: Any,  # noqa: ANN401 - passed on
    ) -> None:
        self.toolset = Toolset(_chosen(tools), images=images, max_output_chars=max_output_chars)
        """The tools and the form of their results."""
        self._conversation = ConversationSandbox(sandbox, options=options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the sandbox, unless it was passed in."""
        await self._conversation.aclose()

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that are offered."""
        return [*self.toolset.tools.values()]

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and JSON Schema of each tool, for SDKs without an adapter."""
        return [{"name": each.name, "description": each.description, "parameters": each.input_schema} for each in self.tools]

    @property
    def sandbox_id(self) -> str | None:
        """Id of the sandbox; None before the first call."""
        present = self._conversation.present
        return None if present is None else present.id

    async def sandbox(self) -> AsyncSandbox:
        """Return the sandbox, and create it if there is none yet."""
        return await self._conversation.get()

    async def call(self, name: str, arguments: object, *, on_output: OnOutput | None = None) -> ToolResult:
        """Run a tool call. Wrong arguments and errors of the sandbox are results that the model can act on.

        Args:
            name: Name of the tool, as the model sent it.
            arguments: Arguments, as JSON text or parsed.
            on_output: Called with each piece of output while a program runs.
        """
        used: list[str] = []

        async def open_sandbox() -> ToolBackend:
            sandbox = await self._conversation.get()
            used.append(sandbox.id)
            return SdkBackend(sandbox)

        result = await self.toolset.call(name, arguments, open_sandbox, on_output=on_output)
        if result.sandbox_ended and used and self._conversation.is_own:
            await self._conversation.forget(used[0])
            return replace(result, content=(*result.content, Text("The next call starts in a new, empty sandbox.")))
        return result

    async def call_all(self, calls: Sequence[tuple[str, object] | ToolResult]) -> list[ToolResult]:
        """Run the calls of one answer at the same time, and return their results in order.

        Args:
            calls: Name and arguments of each call. A :class:`ToolResult` takes the place of a call that is not run, and is its result.
        """
        results: dict[int, ToolResult] = {}

        async def run(index: int, call: tuple[str, object] | ToolResult) -> None:
            results[index] = call if isinstance(call, ToolResult) else await self.call(*call)

        await run_parallel([partial(run, index, call) for index, call in enumerate(calls)])
        return [results[index] for index in range(len(calls))]


class SandboxTools:
    """The same as :class:`AsyncSandboxTools` for synchronous programs. Its requests run in a thread with an event loop.

    Args:
        sandbox: As for :class:`AsyncSandboxTools`, like all other arguments.
        options: Arguments of ``Sandbox.create``.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:  # noqa: ANN401 - passed on
        client: Client | None = options.pop("client", None) if sandbox is None else sandbox._client  # noqa: SLF001 - the other half of the SDK
        self._client = None if client is None else _asynchronous_client(client.target)
        if sandbox is not None and self._client is not None:
            self._tools = self._asynchronous()(AsyncSandbox(self._client, sandbox._info), **options)  # noqa: SLF001
        else:
            given: dict[str, Any] = {} if self._client is None else {"client": self._client}
            self._tools = self._asynchronous()(**options, **given)
        self._resources = ExitStack()
        self._portal: BlockingPortal | None = None

    @classmethod
    def _asynchronous(cls) -> type[AsyncSandboxTools]:
        return AsyncSandboxTools

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox, unless it was passed in."""
        if self._portal is not None:
            portal, self._portal = self._portal, None
            try:
                portal.call(self._aclose)
            finally:
                portal.call(portal.stop, True)  # cancels what an interrupted call has left
                self._resources.close()

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that are offered."""
        return self._tools.tools

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and JSON Schema of each tool, for SDKs without an adapter."""
        return self._tools.schemas

    @property
    def sandbox_id(self) -> str | None:
        """Id of the sandbox; None before the first call."""
        return self._tools.sandbox_id

    def call(self, name: str, arguments: object, *, on_output: OnOutput | None = None) -> ToolResult:
        """Run a tool call; see :meth:`AsyncSandboxTools.call`."""
        return self.drive(lambda tools: tools.call(name, arguments, on_output=on_output))

    def call_all(self, calls: Sequence[tuple[str, object] | ToolResult]) -> list[ToolResult]:
        """Run the calls of one answer at the same time; see :meth:`AsyncSandboxTools.call_all`."""
        return self.drive(lambda tools: tools.call_all(calls))

    async def _aclose(self) -> None:
        try:
            await self._tools.aclose()
        finally:
            if self._client is not None:
                await self._client.aclose()

    def drive(self, function: Callable[[AsyncSandboxTools], Awaitable[T]]) -> T:
        """Run a coroutine function with the tools in the event loop, and return its result."""
        if self._portal is None:
            self._portal = self._resources.enter_context(start_blocking_portal())
        future = self._portal.start_task_soon(function, self._tools)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the program was interrupted while it waited
            raise


async def run_parallel(functions: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run coroutine functions, at most ``MAX_PARALLEL_CALLS`` at the same time. The first error cancels the others and is raised."""
    limiter = anyio.CapacityLimiter(MAX_PARALLEL_CALLS)
    failures: list[Exception] = []

    async def run(function: Callable[[], Awaitable[None]]) -> None:
        try:
            async with limiter:
                await function()
        except Exception as error:  # noqa: BLE001 - raised below, because the group would wrap it in an ExceptionGroup
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(run, function)
    if failures:
        raise failures[0]


def _chosen(names: Iterable[str] | None) -> list[Tool] | None:
    if names is None:
        return None
    chosen = [*names]
    unknown = [name for name in chosen if name not in TOOLS]
    if unknown:
        raise InvalidRequestError(f"There is no tool {unknown[0]!r}.", hint=f"The tools are {', '.join(TOOLS)}.")
    return [TOOLS[name] for name in chosen]


def _asynchronous_client(target: Target) -> AsyncClient:
    if target.local is not None:
        return AsyncClient(api_key=target.api_key, data_dir=target.local)
    return AsyncClient(target.base_url if target.socket is None else f"unix://{target.socket}", target.api_key)


def call_or_result(name: str, arguments: object, *, is_cut: bool) -> tuple[str, object] | ToolResult:
    """Return a call for :meth:`AsyncSandboxTools.call_all`, or the result of a call in which the model's answer was cut off."""
    return invalid_call(CUT_OFF) if is_cut else (name, arguments)
