"""The code contexts of the sandbox: ``kernel.*`` calls and ``guest.warm``.

Invariants:
- A context has one language and at most one process, which runs as ``user`` on what the image has for that language.
- The default contexts exist without being created, also after they were removed. Of others there are at most ``MAX_CONTEXTS``.
- Cells that wait are bounded in number and in bytes.
- A cell is known by the id of its call: a repeated call follows the cell that exists.
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
MAX_QUEUED_CELLS = 64
"""Cells that wait in one context."""
MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""Code and environments of all cells that wait."""
MAX_NAME_CHARS = 64
START_POLL_S = 0.05


class KernelManager:
    """All contexts of the sandbox.

    Args:
        loop: The guest's loop.
        identity: Environment and workspace of the sandbox.
        starter: Starts kernels.
        prefork: Spare kernels.
        oom: Watches memory while cells run.
        rpc: Remembers which cells were forgotten.
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
        """Handle ``kernel.create``."""
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
        """Handle ``kernel.list``."""
        call.result(kernels=[context.describe() for context in self._contexts.values()])

    def remove(self, call: Call) -> None:
        """Handle ``kernel.remove``."""
        name = call.args["kernel"]
        context = self._contexts.pop(name, None)
        if context is not None:
            context.remove()
        elif name not in languages.DEFAULTS:
            raise _unknown_context(name)
        call.result()

    def execute(self, call: Call) -> None:
        """Handle ``kernel.execute``: queue a cell, or follow the cell that was queued with this id."""
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
        """Handle ``kernel.attach``."""
        args = call.args
        cell = self._find_cell(args["execution"])
        cell.follow(call, args["events_from"], args["stdout_from"], args["stderr_from"], wait=args["wait"] is not False)

    def interrupt(self, call: Call) -> None:
        """Handle ``kernel.interrupt``: of a context, or of one cell."""
        execution = call.args["execution"]
        if execution is None:
            name = call.args["kernel"]
            context = self._contexts.get(name)
            if context is None and name not in languages.DEFAULTS:
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
                context.abort(cell, "It was interrupted while it waited.")
        call.result(running=running)

    def restart(self, call: Call) -> None:
        """Handle ``kernel.restart``."""
        name = call.args["kernel"]
        context = self._contexts.get(name)
        if context is not None:
            context.restart()
        elif name not in languages.DEFAULTS:
            raise _unknown_context(name)
        call.result()

    def warm(self, call: Call) -> None:
        """Handle ``guest.warm``: make what the first cell needs, and respond when that is ready and at rest."""
        lean = call.args["lean"] is True

        def on_warm(has_spare: bool) -> None:  # noqa: FBT001 - a callback of Prefork.warm
            if has_spare or lean:
                call.result()
            else:
                self._warm_default(call)

        self._prefork.warm(on_warm, lean=lean)

    def _warm_default(self, call: Call) -> None:
        """Start the kernel of the default context, which most cells go to, if the image has its language."""
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
        """Tell every kernel that the sandbox has woken, and see to it that there will be a spare kernel if making one takes long.

        Args:
            memory_bytes: The sandbox's memory limit, if it is known.
            env: Complete environment of ``user``.
            python: Path of the image's python, if it has one.
        """
        self._oom.set_limit(memory_bytes)
        for context in self._contexts.values():
            context.on_wake()
        self._prefork.on_wake(env, python)

    def on_copied(self) -> None:
        """Forget the cells of the sandbox that this one is a copy of."""
        for context in self._contexts.values():
            context.on_copied()
        self._cells.clear()

    def _on_activity(self) -> None:
        """Adapt to a cell that has started or ended."""
        busy = self._busy_pids()
        self._prefork.on_cells(running=bool(busy))
        if busy:
            self._oom.watch(self._busy_pids)
        self._cells.trim_soon()

    def _busy_pids(self) -> list[int]:
        """Return the processes of kernels that run a cell."""
        return [context.kernel.pid for context in self._contexts.values() if context.cell is not None and context.kernel is not None]

    # -- look-ups and checks -------------------------------------------------------------------------------------------

    def _find_cell(self, id_: str) -> Cell:
        cell = self._cells.get(id_)
        if cell is None:
            raise RpcError("process_not_found", "There is no such execution.", "It may have been forgotten.")
        return cell

    def _find_context(self, name: str, language: str | None) -> CodeContext:
        """Return a context; create it if it is a default one."""
        context = self._contexts.get(name)
        if context is None:
            if name not in languages.DEFAULTS:
                raise _unknown_context(name)
            context = self._contexts[name] = self._new_context(name, language or languages.DEFAULTS[name], None, {})
        elif language is not None and context.language != language:
            raise _wrong_language(context)
        return context

    def _new_context(self, name: str, language: str, cwd: str | None, env: dict[str, str]) -> CodeContext:
        if not 0 < len(name) <= MAX_NAME_CHARS:
            raise RpcError("invalid_request", "That is no id of a context.")
        if name in languages.DEFAULTS and language != languages.DEFAULTS[name]:
            raise RpcError("conflict", f"The context {name!r} is for {languages.DEFAULTS[name]}.", "Use another id.")
        if sum(known not in languages.DEFAULTS for known in self._contexts) >= MAX_CONTEXTS and name not in languages.DEFAULTS:
            raise RpcError("limit_exceeded", f"The sandbox has {MAX_CONTEXTS} contexts already, which is the most.", "Delete one that is not needed.")
        self._check_language(language, {**self._identity.env, **env})
        if cwd is not None and not (cwd.startswith("/") and os.path.isdir(cwd)):
            raise RpcError("path_not_found", f"There is no folder {cwd[:200]!r}.", "Make it first; it must be an absolute path.")
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
        """Refuse a language that the image has no program for.

        The look takes a while, because the program may be in many directories. Python is there if there is a spare kernel.
        """
        if language != "python" or not self._prefork.is_up:
            languages.argv(language, self._identity.environment(lookup_account("user"), env))

    def _check_queue(self, context: CodeContext, cell: Cell) -> None:
        """Refuse a cell if too much waits already."""
        queued = [queued for each in self._contexts.values() for queued in each.queue]
        size = sum(each.request_bytes for each in [*queued, cell])
        if len(context.queue) >= MAX_QUEUED_CELLS or (queued and size > MAX_QUEUED_BYTES):
            raise RpcError("busy", f"Too much waits already: {len(context.queue)} cells in {context.name!r}.", "Wait until some are done.")


def _unknown_context(name: str) -> RpcError:
    return RpcError("not_found", f"There is no context {name[:64]!r}.", "List the contexts, or create one.")


def _wrong_language(context: CodeContext) -> RpcError:
    return RpcError("conflict", f"The context {context.name!r} is for {context.language}.", "Use one of the language, or leave the language out.")
