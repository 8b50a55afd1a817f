"""Contexts for the host: the processes that run cells and keep variables between them, and the cells that are remembered.

Laws:
- Each context has one language and at most one process, which runs as ``user`` on what the image has for it.
- Those that are there by themselves start at their first use, and again after they were removed; of the others there are at most
  ``CONTEXTS``.
- What waits is bounded, in number and in bytes of code.
- A cell is known by the id of its call: asked again, or attached to, it is the same cell. The last ``KEPT`` that are over, and at
  most ``KEPT_BYTES`` of what they gave, are remembered; what threads and children add later counts as well.
"""

from __future__ import annotations

import os

from sandlot.guest.errors import RpcError
from sandlot.guest.kernels import languages
from sandlot.guest.kernels.cells import Cell
from sandlot.guest.kernels.context import Context
from sandlot.guest.kernels.languages import find_python
from sandlot.guest.kernels.memory import Memory
from sandlot.guest.kernels.spares import Spares
from sandlot.guest.process.accounts import build_environment, lookup_account
from sandlot.protocol.fast_imports import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.kernels.services import KernelServices
    from sandlot.guest.rpc import Call

__all__ = ["Kernels", "find_python"]

CONTEXTS = 32
WAITING = 64
"""Cells of one context."""
WAITING_BYTES = 16 * 1024 * 1024
"""Code and environments of all that wait."""
KEPT = 64
KEPT_BYTES = 16 * 1024 * 1024
NAME_CHARS = 64
LOOK_AGAIN_S = 0.05


class Kernels:
    """All contexts of the sandbox, and the cells that are remembered."""

    __slots__ = ("_cells", "_contexts", "_guest", "_is_trimming", "_number", "memory", "spares")

    def __init__(self, guest: KernelServices) -> None:
        self._guest = guest
        self._contexts: OrderedDict[str, Context] = OrderedDict()
        self._cells: OrderedDict[str, Cell] = OrderedDict()
        self._number = 0
        self._is_trimming = False
        self.memory = Memory(guest, self)
        self.spares = Spares(guest, self)

    # -- calls --------------------------------------------------------------------------------------------------------

    def create(self, call: Call) -> None:
        """``kernel.create``."""
        args = call.args
        context = self._contexts.get(args["kernel"])
        if context is None:
            context = self._make(args["kernel"], args["language"], args["cwd"], args["env"])
            context.boot()
            self._contexts[context.name] = context
        elif context.language != args["language"]:
            raise _other_language(context)
        call.result(**context.describe())

    def list_all(self, call: Call) -> None:
        """``kernel.list``."""
        call.result(kernels=[context.describe() for context in self._contexts.values()])

    def remove(self, call: Call) -> None:
        """``kernel.remove``."""
        name = call.args["kernel"]
        context = self._contexts.pop(name, None)
        if context is not None:
            context.remove()
        elif name not in languages.DEFAULTS:
            raise _unknown(name)
        call.result()

    def execute(self, call: Call) -> None:
        """``kernel.execute``."""
        cell = self._cells.get(call.id)
        if cell is None:
            context = self._context(call.args["kernel"], call.args["language"])
            if context.kernel is None:
                self._check(context.language, context.env)
            waiting = [one for each in self._contexts.values() for one in each.queue]
            cell = Cell(self._guest.loop, call.id, call.args)
            size = sum(each.asked_bytes for each in [*waiting, cell])
            if len(context.queue) >= WAITING or (waiting and size > WAITING_BYTES):
                raise RpcError("busy", f"Too much waits already: {len(context.queue)} cells in {context.name!r}.", "Wait until some are done.")
            self.remember(cell)
            cell.attach(call, 0, 0, 0)
            context.submit(cell)
            self._trim_soon()
        else:
            cell.attach(call, 0, 0, 0)

    def attach(self, call: Call) -> None:
        """``kernel.attach``."""
        args = call.args
        self._cell(args["execution"]).attach(call, args["events_from"], args["stdout_from"], args["stderr_from"], wait=args["wait"] is not False)

    def interrupt(self, call: Call) -> None:
        """``kernel.interrupt``."""
        execution = call.args["execution"]
        if execution is None:
            name = call.args["kernel"]
            context = self._contexts.get(name)
            if context is None and name not in languages.DEFAULTS:
                raise _unknown(name)
            call.result(running=context is not None and context.interrupt())
            return
        cell = self._cell(execution)
        context = self._contexts.get(cell.kernel)
        running = cell.result is None and context is not None
        if running and context is not None:
            if context.cell is cell:
                running = context.interrupt()
            else:
                context.abort(cell, "It was interrupted while it waited.")
        call.result(running=running)

    def restart(self, call: Call) -> None:
        """``kernel.restart``."""
        name = call.args["kernel"]
        context = self._contexts.get(name)
        if context is not None:
            context.restart()
        elif name not in languages.DEFAULTS:
            raise _unknown(name)
        call.result()

    def warm(self, call: Call) -> None:
        """``guest.warm``: what the first cell needs is made now, and answered for when it is there and at rest."""
        lean = call.args["lean"] is True
        self.spares.warm(lambda there: call.result() if there else self._warm_default(call, lean=lean), lean=lean)

    def _warm_default(self, call: Call, *, lean: bool) -> None:
        """Nothing is made ahead here: then the one kernel that most cells go to, where the image has one, and memory is not dear."""
        if lean:
            call.result()
            return
        try:
            context = self._context("default", None)
            context.boot()
        except RpcError:
            call.result()
            return
        self._when_up(call, context)

    def _when_up(self, call: Call, context: Context) -> None:
        if context.state == "starting":
            self._guest.loop.call_later(LOOK_AGAIN_S, lambda: self._when_up(call, context))
        else:
            call.result()

    # -- life ---------------------------------------------------------------------------------------------------------

    def woken(self, memory_bytes: int | None, env: dict[str, str], python: str | None) -> None:
        """The sandbox begins a life: tell every kernel, and see to it that there will be one, where it takes long to make one.

        A plain kernel is there in 0.1 s and takes 15 MiB in gVisor: one that nobody asks for is not worth that.

        Args:
            memory_bytes: Its limit, where it is told.
            env: All of the user's environment.
            python: The image's; None where it has none.
        """
        self.memory.set(memory_bytes)
        for context in self._contexts.values():
            context.woken()
        self.spares.woken(env, python)

    def part(self) -> None:
        """This is a copy: cells that are over were another sandbox's, and those that wait are waited for there."""
        for context in self._contexts.values():
            context.part()
        self._cells.clear()

    def reaped(self, pid: int, status: int, peak_bytes: int) -> bool:
        """A child ended; whether it was a kernel, or one made ahead."""
        for context in self._contexts.values():
            if context.kernel is not None and context.kernel.pid == pid:
                context.reaped(status, peak_bytes)
                return True
        return self.spares.reaped(pid)

    def finished(self) -> None:
        """A cell is over."""
        self._trim_soon()
        if not self.is_busy():
            self.spares.settle()

    def out_of_memory(self, pid: int) -> None:
        """That process was killed for memory."""
        for context in self._contexts.values():
            if context.kernel is not None and context.kernel.pid == pid:
                context.kill("oom")

    def is_busy(self) -> bool:
        """Whether a cell runs."""
        return any(context.cell is not None for context in self._contexts.values())

    def busy_pids(self) -> list[int]:
        """The kernels that run a cell."""
        return [context.kernel.pid for context in self._contexts.values() if context.cell is not None and context.kernel is not None]

    def new_number(self) -> int:
        """A mark for a kernel's family."""
        self._number += 1
        return self._number

    def remember(self, cell: Cell) -> None:
        """A new cell; forgotten again when it is over and others need the room."""
        self._cells[cell.id] = cell
        cell.on_late = self._trim_soon

    def cell_of(self, id_: str, kernel: str) -> Cell | None:
        """A remembered cell, where it is that context's."""
        cell = self._cells.get(id_)
        return cell if cell is not None and cell.kernel == kernel else None

    # -- inside -------------------------------------------------------------------------------------------------------

    def _cell(self, id_: str) -> Cell:
        cell = self._cells.get(id_)
        if cell is None:
            raise RpcError("process_not_found", "There is no such execution.", "It may have been forgotten.")
        return cell

    def _context(self, name: str, language: str | None) -> Context:
        context = self._contexts.get(name)
        if context is None:
            if name not in languages.DEFAULTS:
                raise _unknown(name)
            context = self._contexts[name] = self._make(name, language or languages.DEFAULTS[name], None, {})
        elif language is not None and context.language != language:
            raise _other_language(context)
        return context

    def _make(self, name: str, language: str, cwd: str | None, env: dict[str, str]) -> Context:
        if not 0 < len(name) <= NAME_CHARS:
            raise RpcError("invalid_request", "That is no id of a context.")
        if name in languages.DEFAULTS and language != languages.DEFAULTS[name]:
            raise RpcError("conflict", f"The context {name!r} is for {languages.DEFAULTS[name]}.", "Use another id.")
        if sum(known not in languages.DEFAULTS for known in self._contexts) >= CONTEXTS and name not in languages.DEFAULTS:
            raise RpcError("limit_exceeded", f"The sandbox has {CONTEXTS} contexts already, which is the most.", "Delete one that is not needed.")
        self._check(language, env)
        if cwd is not None and not (cwd.startswith("/") and os.path.isdir(cwd)):
            raise RpcError("path_not_found", f"There is no folder {cwd[:200]!r}.", "Make it first; it must be an absolute path.")
        return Context(self._guest, self, name, language, cwd or self._guest.identity.workspace, env)

    def _check(self, language: str, env: dict[str, str]) -> None:
        """Refuse a language that the image has nothing for. That is looked up in many folders; where a zygote lives there is a python."""
        if language != "python" or not self.spares.is_up:
            languages.argv(language, build_environment(lookup_account("user"), self._guest.identity.env, env))

    def _trim_soon(self) -> None:
        """Once what there is to answer has been sent."""
        if not self._is_trimming:
            self._is_trimming = True
            self._guest.loop.call_soon(self._trim)

    def _trim(self) -> None:
        self._is_trimming = False
        done = [cell for cell in self._cells.values() if cell.result is not None and not cell.readers]
        kept = sum(cell.kept_bytes for cell in self._cells.values())
        count = len(self._cells)
        for cell in done:
            if count <= KEPT and kept <= KEPT_BYTES:
                return
            kept -= cell.kept_bytes
            count -= 1
            del self._cells[cell.id]
            self._guest.rpc.forget_result(cell.id, "kernel.execute")


def _unknown(name: str) -> RpcError:
    return RpcError("not_found", f"There is no context {name[:64]!r}.", "List the contexts, or create one.")


def _other_language(context: Context) -> RpcError:
    return RpcError("conflict", f"The context {context.name!r} is for {context.language}.", "Use one of the language, or leave the language out.")
