"""The code contexts of the sandbox, and the handlers of the ``kernel.*`` calls and of ``guest.warm``.

Invariants:
- A context has one language and at most one kernel process, which runs as the user of the sandbox on an interpreter of the image. The
  exception is the bash kernel: its program runs on the guest's interpreter and controls the bash of the image.
- A default context (``languages.DEFAULT_CONTEXTS``) that does not exist is created when a cell needs the context, even if a client has removed
  the context before. At most ``MAX_CONTEXTS`` contexts exist in addition to the default contexts.
- Waiting cells are limited in number for each context, and in total size for all contexts.
- The id of a cell is the id of the ``kernel.execute`` call that submitted it. A repeated call with this id gets the output of the existing cell.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import languages
from sandlot.guest.kernels.cell import Cell
from sandlot.guest.kernels.cell_store import CellStore
from sandlot.guest.kernels.context import CodeContext
from sandlot.guest.process.accounts import lookup_account
from sandlot.protocol.fast_imports import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.identity import SandboxIdentity
    from sandlot.guest.kernels.oom import OomWatcher
    from sandlot.guest.kernels.prefork import Prefork
    from sandlot.guest.kernels.starter import KernelStarter
    from sandlot.guest.loop import Loop
    from sandlot.guest.rpc import Call, RpcServer

MAX_CONTEXTS = 32
"""Maximum number of contexts in addition to the default contexts."""
MAX_QUEUED_CELLS = 64
"""Maximum number of waiting cells of one context."""
MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""Maximum total size in bytes of code and environments of the waiting cells of all contexts."""
MAX_NAME_CHARS = 64
"""Maximum number of characters in the id of a context."""
START_POLL_S = 0.05
"""Interval in seconds at which a ``guest.warm`` call that waits for a kernel checks the state of the kernel."""


class KernelManager:
    """All contexts of the sandbox, by id.

    Args:
        loop: The guest's loop.
        identity: The sandbox's identity, which includes its environment variables and its default working directory.
        starter: Starts the kernels of contexts.
        prefork: Keeps a spare Python kernel.
        oom: Watches free memory while cells run.
        rpc: Server of the calls. It refuses calls with the id of a cell that is no longer kept.
    """

    __slots__ = ("_cells", "_contexts", "_identity", "_loop", "_oom", "_prefork", "_starter")

    def __init__(self, loop: Loop, identity: SandboxIdentity, starter: KernelStarter, prefork: Prefork, oom: OomWatcher, rpc: RpcServer) -> None:
        self._loop = loop
        self._identity = identity
        self._starter = starter
        self._prefork = prefork
        self._oom = oom
        self._contexts: OrderedDict[str, CodeContext] = OrderedDict()
        self._cells = CellStore(loop, rpc)

    # -- calls --------------------------------------------------------------------------------------------------------

    def create(self, call: Call) -> None:
        """Handle ``kernel.create``: create a context and start its kernel, or return the existing context with the same id."""
        args = call.args
        context = self._contexts.get(args["kernel"])
        if context is None:
            context = self._new_context(args["kernel"], args["language"], args["cwd"], args["env"])
            context.start()
            self._contexts[context.name] = context
        elif context.language != args["language"]:
            raise _wrong_language(context)
        call.result(**context.describe())

    def list_all(self, call: Call) -> None:
        """Handle ``kernel.list``: return all contexts."""
        call.result(kernels=[context.describe() for context in self._contexts.values()])

    def remove(self, call: Call) -> None:
        """Handle ``kernel.remove``: remove a context and kill its kernel."""
        name = call.args["kernel"]
        context = self._contexts.pop(name, None)
        if context is not None:
            context.remove()
        elif name not in languages.DEFAULT_CONTEXTS:
            raise _unknown_context(name)
        call.result()

    def execute(self, call: Call) -> None:
        """Handle ``kernel.execute``: queue a cell and send its output to the caller. A repeated call gets the output of the existing cell."""
        cell = self._cells.get(call.id)
        if cell is not None:
            cell.follow(call, 0, 0, 0)
            return
        context = self._find_context(call.args["kernel"], call.args["language"])
        if context.kernel is None:
            self._check_language(context.language, context.env)
        cell = Cell(self._loop, call.id, call.args)
        self._check_queue(context, cell)
        self._cells.add(cell)
        cell.follow(call, 0, 0, 0)
        context.submit(cell)

    def attach(self, call: Call) -> None:
        """Handle ``kernel.attach``: send the output, events and result of an existing cell."""
        args = call.args
        cell = self._find_cell(args["execution"])
        cell.follow(call, args["events_from"], args["stdout_from"], args["stderr_from"], wait=args["wait"] is not False)

    def interrupt(self, call: Call) -> None:
        """Handle ``kernel.interrupt``: interrupt the cell with the id ``execution``. A cell that is still queued is aborted.

        If ``execution`` is None, interrupt the running cell of the context ``kernel``.
        """
        execution = call.args["execution"]
        if execution is None:
            name = call.args["kernel"]
            context = self._contexts.get(name)
            if context is None and name not in languages.DEFAULT_CONTEXTS:
                raise _unknown_context(name)
            call.result(running=context is not None and context.interrupt())
            return
        cell = self._find_cell(execution)
        context = self._contexts.get(cell.kernel)
        running = cell.result is None and context is not None
        if running and context is not None:
            if context.cell is cell:
                running = context.interrupt()
            else:
                context.abort(cell, "It was interrupted before it started.")
        call.result(running=running)

    def restart(self, call: Call) -> None:
        """Handle ``kernel.restart``: kill the kernel of a context and abort its waiting cells."""
        name = call.args["kernel"]
        context = self._contexts.get(name)
        if context is not None:
            context.restart()
        elif name not in languages.DEFAULT_CONTEXTS:
            raise _unknown_context(name)
        call.result()

    def warm(self, call: Call) -> None:
        """Handle ``guest.warm``: prepare a spare kernel and respond when the spare kernel is idle.

        If no spare kernel can be prepared, start the kernel of the default context instead. If the argument ``lean`` of the call is True, respond
        without starting this kernel.
        """
        lean = call.args["lean"] is True

        def on_warm(has_spare: bool) -> None:  # noqa: FBT001 - a callback of Prefork.warm
            if has_spare or lean:
                call.result()
            else:
                self._warm_default(call)

        self._prefork.warm(on_warm, lean=lean)

    def _warm_default(self, call: Call) -> None:
        """Start the kernel of the default context, and respond to ``guest.warm`` when the start has succeeded or failed."""
        try:
            context = self._find_context("default", None)
            context.start()
        except RpcError:
            call.result()
            return
        self._respond_when_started(call, context)

    def _respond_when_started(self, call: Call, context: CodeContext) -> None:
        if context.reported_state == "starting":
            self._loop.call_later(START_POLL_S, lambda: self._respond_when_started(call, context))
        else:
            call.result()

    # -- events --------------------------------------------------------------------------------------------------------

    def on_wake(self, memory_bytes: int | None, env: dict[str, str], python: str | None) -> None:
        """Set the memory limit, send the new environment to all kernels, and prepare a spare kernel if the image has IPython.

        Args:
            memory_bytes: Memory limit of the sandbox in bytes; None if unknown.
            env: Complete environment of the user of code after the wake.
            python: Path of the image's Python interpreter; None if the image has no Python.
        """
        self._oom.set_limit(memory_bytes)
        for context in self._contexts.values():
            context.on_wake()
        self._prefork.on_wake(env, python)

    def on_copied(self) -> None:
        """Forget all cells after this sandbox was created as a copy: the cells belong to the original sandbox."""
        for context in self._contexts.values():
            context.on_copied()
        self._cells.clear()

    def _on_activity(self) -> None:
        """Inform the prefork (which keeps the spare kernel), the memory watcher and the store of cells that a cell has started or ended."""
        busy = self._busy_pids()
        self._prefork.on_cells(running=bool(busy))
        if busy:
            self._oom.on_cell(self._busy_pids)
        self._cells.trim_soon()

    def _busy_pids(self) -> list[int]:
        """Return the pids of the kernels that run a cell."""
        return [context.kernel.pid for context in self._contexts.values() if context.cell is not None and context.kernel is not None]

    # -- look-ups and checks -------------------------------------------------------------------------------------------

    def _find_cell(self, id_: str) -> Cell:
        cell = self._cells.get(id_)
        if cell is None:
            raise RpcError("process_not_found", f"Execution {id_[:64]!r} does not exist or is no longer kept.", "Check the id of the execution.")
        return cell

    def _find_context(self, name: str, language: str | None) -> CodeContext:
        """Return the context with an id. Create the context if it is a default context that does not exist yet.

        Args:
            name: Id of the context.
            language: Language that the context must have; None accepts any language.

        Raises:
            RpcError: There is no context with this id, or the context has another language.
        """
        context = self._contexts.get(name)
        if context is None:
            if name not in languages.DEFAULT_CONTEXTS:
                raise _unknown_context(name)
            context = self._contexts[name] = self._new_context(name, language or languages.DEFAULT_CONTEXTS[name], None, {})
        elif language is not None and context.language != language:
            raise _wrong_language(context)
        return context

    def _new_context(self, name: str, language: str, cwd: str | None, env: dict[str, str]) -> CodeContext:
        if not 0 < len(name) <= MAX_NAME_CHARS:
            message = f"The context id {name[:64]!r} has {len(name)} characters."
            raise RpcError("invalid_request", message, f"Use an id of 1 to {MAX_NAME_CHARS} characters.")
        if name in languages.DEFAULT_CONTEXTS and language != languages.DEFAULT_CONTEXTS[name]:
            message = f"The language of the default context {name!r} is {languages.DEFAULT_CONTEXTS[name]}, not {language[:50]}."
            raise RpcError("conflict", message, "Use another id for the context.")
        if sum(known not in languages.DEFAULT_CONTEXTS for known in self._contexts) >= MAX_CONTEXTS and name not in languages.DEFAULT_CONTEXTS:
            message = f"The sandbox has {MAX_CONTEXTS} contexts besides the default contexts, the maximum."
            raise RpcError("limit_exceeded", message, "Delete a context that is no longer needed.")
        self._check_language(language, {**self._identity.env, **env})
        if cwd is not None and not (cwd.startswith("/") and os.path.isdir(cwd)):
            code, reason = ("path_not_directory", "is not a folder") if os.path.exists(cwd) else ("working_directory_not_found", "does not exist")
            raise RpcError(code, f"The working directory {cwd[:200]!r} {reason}.", "Pass the absolute path of an existing folder.")
        return CodeContext(
            self._loop,
            self._identity,
            self._starter,
            self._oom,
            self._cells,
            name,
            language,
            cwd or self._identity.workspace,
            env,
            self._on_activity,
        )

    def _check_language(self, language: str, env: dict[str, str]) -> None:
        """Refuse a language that the image cannot run.

        Searching ``PATH`` for the interpreter takes time. For Python the search is skipped if a spare kernel or a fork server runs.

        Raises:
            RpcError: The image has no interpreter for the language, or the language is unknown.
        """
        if language != "python" or not self._prefork.is_up:
            languages.kernel_argv(language, self._identity.environment(lookup_account(self._identity.user), env))

    def _check_queue(self, context: CodeContext, cell: Cell) -> None:
        """Refuse a cell if ``context`` has ``MAX_QUEUED_CELLS`` waiting cells, or if all waiting cells would exceed ``MAX_QUEUED_BYTES``.

        Raises:
            RpcError: ``busy``: one of the limits would be exceeded.
        """
        queued = [queued for each in self._contexts.values() for queued in each.queue]
        size = sum(each.request_bytes for each in [*queued, cell])
        hint = "Retry when some cells have ended."
        if len(context.queue) >= MAX_QUEUED_CELLS:
            raise RpcError("busy", f"The context {context.name!r} already has {MAX_QUEUED_CELLS} waiting cells, the maximum.", hint)
        if queued and size > MAX_QUEUED_BYTES:
            text = f"With this cell, the waiting cells of all contexts would have {size} bytes, but the maximum is {MAX_QUEUED_BYTES}."
            raise RpcError("busy", text, hint)


def _unknown_context(name: str) -> RpcError:
    return RpcError("not_found", f"The context {name[:64]!r} does not exist.", "List the contexts, or create this context.")


def _wrong_language(context: CodeContext) -> RpcError:
    return RpcError("conflict", f"Context {context.name!r} runs {context.language} only.", "Use another context, or omit the language.")
